"""Models and choosers as users of SQLAlchemy's extension have them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, Engine, event, ForeignKey, func, Integer, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

TIMEOUT = 60
#: For the threads of lanes that a test opens itself; those of a cluster that
#: an earlier test has left have another name.
LANE = "lane-of-this-test"


class Base(DeclarativeBase):
    pass


class Board(Base):
    __tablename__ = "boards"

    id: Mapped[int] = mapped_column(primary_key=True)
    shard: Mapped[str] = mapped_column(String(20))
    title: Mapped[str | None] = mapped_column(String(200))
    number: Mapped[int | None] = mapped_column(Integer)
    pins: Mapped[list[Pin]] = relationship(order_by="Pin.id")


class Pin(Base):
    __tablename__ = "pins"

    id: Mapped[int] = mapped_column(primary_key=True)
    board_id: Mapped[int] = mapped_column(ForeignKey("boards.id"))
    link: Mapped[str] = mapped_column(String(200))


class Choosers:
    """Everything is on all shards, but an object on that of its column."""

    def __init__(self, shards: dict[Any, Any]) -> None:
        self.shards = shards

    def shard(self, mapper: Any, instance: Any, clause: Any = None) -> Any:
        if isinstance(instance, Pin):
            raise AssertionError("pins are added by their board")
        return next(s for s in self.shards if str(s) == instance.shard)

    def identity(self, mapper: Any, primary_key: Any, **kw: Any) -> Any:
        return list(self.shards)

    def execute(self, context: Any) -> Any:
        if context.is_select and context.lazy_loaded_from is not None:
            return [context.lazy_loaded_from.identity_token]
        return list(self.shards)

    def arguments(self) -> dict[str, Any]:
        return {
            "shards": self.shards,
            "shard_chooser": self.shard,
            "identity_chooser": self.identity,
            "execute_chooser": self.execute,
        }


def engines_in(directory: Path, names: Any, **options: Any) -> dict[Any, Engine]:
    """Return an engine on a file of its own for each shard."""
    found = {}
    for name in names:
        url = f"sqlite:///{directory}/shard_{name}.sqlite"
        found[name] = create_engine(url, **options)
    return found


def fill(shards: dict[Any, Any], boards: int = 1, pins: int = 2) -> None:
    """Put rows on every shard, with the same ids on all of them."""
    for name, engine in shards.items():
        Base.metadata.drop_all(engine)
        Base.metadata.create_all(engine)
        with engine.begin() as connection:
            for board in range(1, boards + 1):
                connection.execute(
                    Board.__table__.insert(),
                    {"id": board, "shard": str(name), "title": f"on {name}"},
                )
                for pin in range(pins):
                    connection.execute(
                        Pin.__table__.insert(),
                        {
                            "id": board * 100 + pin,
                            "board_id": board,
                            "link": f"{name} {board} {pin}",
                        },
                    )


def lane_threads() -> int:
    return sum(t.name.startswith(LANE) for t in threading.enumerate())


@contextmanager
def meeting(engines: Any, parties: int, timeout: float = TIMEOUT) -> Iterator[Any]:
    """Give statements a function that returns when all have called it.

    It fails where they do not run at the same time.
    """
    barrier = threading.Barrier(parties, timeout=timeout)

    def connected(connection: Any, record: Any) -> None:
        connection.create_function("meet", 0, barrier.wait)

    for engine in engines:
        engine.dispose()
        event.listen(engine, "connect", connected)
    try:
        yield func.meet()
    finally:
        for engine in engines:
            event.remove(engine, "connect", connected)
            engine.dispose()
