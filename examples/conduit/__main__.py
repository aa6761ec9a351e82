"""A demonstration: three users, what they write, and what they read."""

from __future__ import annotations

import asyncio
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from examples.conduit.service import create_app
from sqla_shard import Cluster
from sqla_shard.testing import sqlite_topology


async def show(cluster: Cluster) -> None:
    """Write, follow, like, comment and delete, as three users."""
    app = create_app(cluster)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://conduit.example"
        ) as client,
    ):

        async def ask(
            method: str, path: str, status: int = 200, by: str = "", **given: Any
        ) -> Any:
            headers = {"Authorization": f"Token {tokens[by]}"} if by else {}
            answer = await client.request(
                method, f"/api{path}", headers=headers, json=given or None
            )
            assert answer.status_code == status, (method, path, answer.text)
            return answer.json() if answer.content else None

        tokens: dict[str, str] = {}
        for name in ("ada", "grace", "alan"):
            user = {"email": f"{name}@example.com", "password": "x" * 8}
            user["username"] = name
            found = await ask("POST", "/users", 201, user=user)
            tokens[name] = found["user"]["token"]
        taken = await ask("POST", "/users", 409, user={**user, "username": "another"})
        assert taken == {"errors": {"body": ["Conflict"]}}
        assert await ask("POST", "/users/login", user=user) == found
        await ask("POST", "/users/login", 401, user={**user, "password": "y"})
        await ask("GET", "/user", 401)
        changes = {"email": "alan@example.org", "bio": "computes"}
        changed = await ask("PUT", "/user", by="alan", user=changes)
        assert changed["user"].items() >= changes.items()
        await ask("POST", "/users/login", user={**user, **changes})
        await ask("POST", "/users/login", 401, user=user)
        print("Three users have signed up; no address is taken twice.")

        slugs = []
        for number in range(3):
            by = ("ada", "grace")[number % 2]
            article = {"title": f"Boats, {number}", "description": "d", "body": "b"}
            article["tagList"] = [f"boat{number}", "boats"]  # type: ignore[assignment]
            made = await ask("POST", "/articles", 201, by=by, article=article)
            assert made["article"].items() >= article.items()
            slugs.append(made["article"]["slug"])
        newest = await ask("GET", "/articles?limit=2")
        assert [one["slug"] for one in newest["articles"]] == [slugs[2], slugs[1]]
        assert newest["articlesCount"] == 3
        for wanted, expected in [
            ("author=ada", [slugs[2], slugs[0]]),
            ("tag=boats&offset=1", [slugs[1], slugs[0]]),
            ("tag=boat1", [slugs[1]]),
            ("author=nobody", []),
        ]:
            listed = await ask("GET", f"/articles?{wanted}")
            assert [one["slug"] for one in listed["articles"]] == expected, wanted
        tags = await ask("GET", "/tags")
        assert tags == {"tags": ["boat0", "boat1", "boat2", "boats"]}
        print("Three articles are listed by time, author and tag.")

        assert (await ask("GET", "/articles/feed", by="alan"))["articlesCount"] == 0
        followed = await ask("POST", "/profiles/ada/follow", by="alan")
        assert followed["profile"]["following"]
        listed = await ask("GET", "/articles/feed", by="alan")
        assert [one["slug"] for one in listed["articles"]] == [slugs[2], slugs[0]]
        assert listed["articles"][0]["author"]["following"]
        await ask("DELETE", "/profiles/ada/follow", by="alan")
        liked = await ask("POST", f"/articles/{slugs[0]}/favorite", by="alan")
        assert (liked["article"]["favorited"], liked["article"]["favoritesCount"]) == (
            True,
            1,
        )
        listed = await ask("GET", "/articles?favorited=alan", by="grace")
        (only,) = listed["articles"]
        assert (only["favorited"], only["favoritesCount"]) == (False, 1)
        comments = f"/articles/{slugs[0]}/comments"
        said = await ask("POST", comments, 201, by="grace", comment={"body": "Ahoy"})
        assert (await ask("GET", comments))["comments"] == [said["comment"]]
        key = said["comment"]["id"]
        await ask("DELETE", f"{comments}/{key}", 403, by="alan")
        await ask("DELETE", f"{comments}/{key}", 204, by="grace")
        await ask("POST", comments, 201, by="grace", comment={"body": "Again"})
        print("Alan follows Ada, and likes what she wrote; Grace comments it.")

        title = {"title": "Ships"}
        await ask("PUT", f"/articles/{slugs[0]}", 403, by="alan", article=title)
        moved = await ask("PUT", f"/articles/{slugs[0]}", by="ada", article=title)
        # The old slug has the id, too.
        assert moved["article"]["slug"].startswith("ships-")
        assert await ask("GET", f"/articles/{slugs[0]}", by="ada") == moved
        await ask("DELETE", f"/articles/{slugs[0]}", 204, by="ada")
        for path in (f"/articles/{slugs[0]}", "/articles/boats-7", "/articles/x"):
            assert "errors" in await ask("GET", path, 404)
        assert (await ask("GET", "/articles?favorited=alan"))["articlesCount"] == 0
        assert (await ask("GET", "/articles?tag=boat0"))["articlesCount"] == 0
        print("What is deleted is in no list.")
        assert not any(pool.busy for pool in cluster.stats())


def main() -> None:
    """Run the example on SQLite: two servers with 16 virtual shards."""
    with TemporaryDirectory() as directory:
        topology = sqlite_topology(directory, servers=2, shards=16, lookup=16)
        asyncio.run(show(Cluster.from_topology(topology)))


if __name__ == "__main__":
    main()
