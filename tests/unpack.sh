#!/bin/sh
# Unpack programs of another Debian suite beside those of the system.
#
#   tests/unpack.sh SUITE FOLDER PACKAGE...
#
# Nothing is installed: the packages, with all that they depend on, go into
# FOLDER, and FOLDER/bin gets their programs.  These start with the loader and
# the libraries of FOLDER, whatever the system has.  The address of the archive
# is that of the system's own apt-get.  A Python starts itself again, from the
# path that it sees, and takes patchelf.
set -eu

suite=$1
folder=$2
shift 2

# The origin of others, such as "Debian Backports", has two words.
origin=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN)' \
    'Created-By: Packages' | awk 'NF == 2 && $2 == "Debian" && !/security/ {
        print $1; exit }')
if [ -z "$origin" ]; then
    echo "apt-get has no index of Debian's archive" >&2
    exit 1
fi

mkdir -p "$(dirname "$folder")"
# Another one that unpacks the same would remove what this one has so far.
exec 9>"$folder.lock"
if ! flock -n 9; then
    flock 9
    if [ -d "$folder" ]; then exit; fi
fi

# Complete under its final name, or not there.
new=$folder.new
rm -rf "$new"
mkdir -p "$new/apt/lists/partial" "$new/apt/parts" "$new/debs"
new=$(cd "$new" && pwd)
trap 'rm -rf "$new"' EXIT
# dash ends by a signal without the trap above.
trap 'exit 1' HUP INT TERM

cat >"$new/apt/parts/archive.sources" <<END
Types: deb
URIs: $origin
Suites: $suite
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END

get() {
    apt-get -q -o Dir::State::Lists="$new/apt/lists" \
        -o Dir::State::status=/dev/null \
        -o Dir::Etc::sourcelist=/dev/null \
        -o Dir::Etc::sourceparts="$new/apt/parts" \
        -o Dir::Cache::pkgcache="$new/apt/packages.bin" \
        -o Dir::Cache::srcpkgcache="$new/apt/sources.bin" \
        -o APT::Sandbox::User="$(id -un)" \
        -o APT::Update::Error-Mode=any \
        -o Acquire::Retries=3 -o Acquire::http::Timeout=60 "$@"
}

get update
names=$(get --no-install-recommends -s install "$@" |
    awk '/^Inst/ { print $2 }')
(
    cd "$new/debs"
    # One word for each package.
    # shellcheck disable=SC2086
    get download $names
    for package in *.deb; do
        dpkg-deb -x "$package" "$new"
    done
)
rm -rf "$new/debs" "$new/apt"
# The name that it will have.
final=$(dirname "$new")/$(basename "$folder")

# A program of one folder, such as mariadb-install-db, looks for the others and
# their files there.
mkdir "$new/bin"
ln -s bin "$new/sbin"
ln -s usr/share "$new/share"
lib=$(cd "$new" && dirname usr/lib/*/ld-linux-*.so.*)
loader=$(cd "$new" && ls $lib/ld-linux-*.so.*)
for program in "$new"/usr/bin/* "$new"/usr/sbin/*; do
    name=${program##*/}
    path=${program#"$new"/}
    case $name in
        my_* | resolveip) files= ;;
        # Or they look for their files where the system would have them.
        mysqld | mariadbd) files='
    --plugin-dir="$root/usr/lib/mysql/plugin" \
    --lc-messages-dir="$root/usr/share/mysql" \
    --character-sets-dir="$root/usr/share/mysql/charsets"' ;;
        mysql* | mariadb*) files= ;;
        python3*[0-9])
            patchelf --set-interpreter "$final/$loader" --force-rpath \
                --set-rpath "$final/$lib" "$program"
            ln -s "../$path" "$new/bin/$name"
            # Or venv installs the pip of the system, if any.
            sed -i "s:/usr/share/python-wheels:$final&:" \
                "$new"/usr/lib/"$name"/_sysconfigdata_*.py
            continue ;;
        *) continue ;;
    esac
    if [ "$(head -c 4 "$program" | tail -c 3)" != ELF ]; then
        ln -s "../$path" "$new/bin/$name"
        continue
    fi
    cat >"$new/bin/$name" <<END
#!/bin/sh
root=\$(dirname "\$(dirname "\$(readlink -f "\$0")")")
exec "\$root/$loader" --library-path "\$root/$lib" "\$root/$path" "\$@"${files:+ \\$files}
END
    chmod +x "$new/bin/$name"
done

rm -rf "$folder"
mv "$new" "$folder"
trap - EXIT
