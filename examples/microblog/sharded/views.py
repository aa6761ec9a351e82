"""The pages of the application."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from flask import (
    abort,
    Blueprint,
    flash,
    g,
    redirect,
    render_template,
    request,
    session,
    url_for,
)
from werkzeug.wrappers import Response

from .models import (
    count,
    db,
    delete_user,
    everybody,
    find_user,
    Message,
    newest,
    Post,
    search,
    sign_up,
    User,
)

pages = Blueprint("pages", __name__)


@pages.before_app_request
def load_user() -> None:
    """Load the signed-in user before each request."""
    user_id = session.get("user_id")
    g.user = None if user_id is None else db.session.get(User, int(user_id))


def login_required(view: Callable[..., Any]) -> Callable[..., Any]:
    """Redirect to the sign-in page unless a user is signed in."""

    @wraps(view)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if g.user is None:
            return redirect(url_for("pages.login", next=request.path))
        return view(*args, **kwargs)

    return checked


def user_or_404(username: str) -> User:
    """Return the user with a name."""
    return find_user(username) or abort(404)


@pages.route("/register", methods=["GET", "POST"])
def register() -> str | Response:
    """Sign up."""
    if request.method == "POST":
        user = sign_up(
            request.form["username"].strip(),
            request.form["email"].strip().lower(),
            request.form["password"],
        )
        if user is not None:
            session["user_id"] = str(user.id)
            return redirect(url_for("pages.index"))
        flash("This name or this address is taken.")
    return render_template("register.html")


@pages.route("/login", methods=["GET", "POST"])
def login() -> str | Response:
    """Sign in."""
    if request.method == "POST":
        user = find_user(request.form["username"])
        if user is not None and user.check_password(request.form["password"]):
            session["user_id"] = str(user.id)
            return redirect(url_for("pages.index"))
        flash("The name or the password is wrong.")
    return render_template("login.html")


@pages.post("/logout")
def logout() -> Response:
    """Sign out."""
    session.clear()
    return redirect(url_for("pages.login"))


@pages.route("/", methods=["GET", "POST"])
@login_required
def index() -> str | Response:
    """Show the posts of the user and of those followed; add a post."""
    if request.method == "POST":
        post = Post(user_id=g.user.id, body=request.form["body"])
        db.session.add(post)
        db.session.commit()
        return redirect(url_for("pages.index"))
    posts = db.paginate(g.user.feed(), per_page=5)
    return render_template("posts.html", title="Home", posts=posts, form=True)


@pages.get("/explore")
@login_required
def explore() -> str:
    """Show the posts of all users."""
    posts = db.paginate(newest(), per_page=5)
    return render_template("posts.html", title="Explore", posts=posts)


@pages.get("/search")
@login_required
def find() -> str:
    """Show the posts that contain some words."""
    posts = db.paginate(search(request.args.get("q", "")), per_page=5)
    return render_template("posts.html", title="Search", posts=posts)


@pages.get("/user/<username>")
@login_required
def profile(username: str) -> str:
    """Show a user and the user's posts."""
    user = user_or_404(username)
    posts = db.paginate(newest(Post.user_id == user.id), per_page=5)
    return render_template("user.html", user=user, posts=posts)


@pages.route("/profile", methods=["GET", "POST"])
@login_required
def edit() -> str | Response:
    """Edit the profile of the user."""
    if request.method == "POST":
        g.user.about_me = request.form["about_me"]
        db.session.commit()
        return redirect(url_for("pages.profile", username=g.user.username))
    return render_template("edit.html")


@pages.post("/follow/<username>")
@login_required
def follow(username: str) -> Response:
    """Follow a user."""
    user = user_or_404(username)
    if user.id == g.user.id:
        abort(400)
    g.user.follow(user)
    db.session.commit()
    return redirect(url_for("pages.profile", username=username))


@pages.post("/unfollow/<username>")
@login_required
def unfollow(username: str) -> Response:
    """Unfollow a user."""
    g.user.unfollow(user_or_404(username))
    db.session.commit()
    return redirect(url_for("pages.profile", username=username))


@pages.post("/post/<int:post_id>/delete")
@login_required
def delete_post(post_id: int) -> Response:
    """Delete a post of the user."""
    post = db.get_or_404(Post, post_id)
    if post.user_id != g.user.id:
        abort(403)
    db.session.delete(post)
    db.session.commit()
    return redirect(url_for("pages.index"))


@pages.post("/message/<username>")
@login_required
def send(username: str) -> Response:
    """Send a message to a user."""
    message = Message(
        sender_id=g.user.id,
        recipient_id=user_or_404(username).id,
        body=request.form["body"],
    )
    db.session.add(message)
    db.session.commit()
    flash("Your message was sent.")
    return redirect(url_for("pages.profile", username=username))


@pages.get("/messages")
@login_required
def messages() -> str:
    """Show the messages to the user."""
    found = db.paginate(g.user.inbox(), per_page=5)
    return render_template("messages.html", messages=found)


@pages.get("/admin")
@login_required
def admin() -> str:
    """Show all users, with page numbers."""
    if not g.user.is_admin:
        abort(403)
    users = db.paginate(everybody(), per_page=5)
    posts = count(newest())
    return render_template("admin.html", users=users, posts=posts)


@pages.post("/admin/delete/<username>")
@login_required
def remove(username: str) -> Response:
    """Delete a user."""
    if not g.user.is_admin:
        abort(403)
    delete_user(user_or_404(username))
    return redirect(url_for("pages.admin"))
