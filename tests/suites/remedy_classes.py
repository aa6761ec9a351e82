"""Classes that are refused, and what their message says to write instead.

Both are code, which a user would have in a module.
"""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy.orm import configure_mappers

from sqla_shard import exc
from sqla_shard.models.mapping_definition import link

PRELUDE = """
import dataclasses
import enum
from typing import Any
from sqlalchemy import Column, ForeignKey, MetaData, String, Table
from sqlalchemy.orm import (
    DeclarativeBase, Mapped, MappedAsDataclass, mapped_column, registry,
    relationship,
)
from sqla_shard import *
from sqla_shard.lookup import normalization

class Base(DeclarativeBase):
    registry = registry()
"""

USER = """
class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"
    name: Mapped[str] = blob_field(default="")
"""

POST = """
class Post(ObjectMixin, Base, type_id=2):
    __tablename__ = "posts"
"""

LIKES = f"""{USER}{POST}
class UserLikesPosts(MappingMixin, Base, source=User, target=Post):
    pass
"""

COUNTRY = """
class Country(ReferenceMixin, Base):
    code: Mapped[str] = mapped_column(String(2), primary_key=True)
"""

RECORD = f"""
@dataclasses.dataclass
class Size:
    wide: int
{USER}
    size: Mapped[Size | None] = blob_field(default=None)
"""


ITEM = """
class Item(ObjectMixin, Base, type_id=4):
    __tablename__ = "items"
    __mapper_args__ = {
        "polymorphic_on": "kind", "polymorphic_identity": "item"
    }
    kind: Mapped[str] = blob_field()
"""

ITEMS = ITEM.replace("blob_field()", "mapped_column(String(20))")

BOOK = """
class Book(Item):
    __mapper_args__ = {"polymorphic_identity": "book"}
"""

PARENT = """
    book_id: Mapped[int | None] = mapped_column(ShardedId(4))
"""


@dataclass(frozen=True)
class Definition:
    """A refused class, its message, and the class that works instead.

    :ivar refused: code that raises.
    :ivar names: parts of the message, in this order: the problem, and the
        class that works.
    :ivar remedy: the code as the message says.
    """

    refused: str
    names: tuple[str, ...]
    remedy: str


def changed(code: str, old: str, new: str, *names: str) -> Definition:
    """Return a class that one change makes right."""
    assert code.count(old) == 1, old
    return Definition(code, names, code.replace(old, new))


CLASSES: dict[str, Definition] = {
    # -- object classes
    "no type id": changed(
        USER.replace(", type_id=3", ""),
        "Base)",
        "Base, type_id=3)",
        "type_id is missing",
        "class User(ObjectMixin, Base, type_id=n)",
    ),
    "a type id twice": changed(
        USER + POST.replace("2", "3"),
        'type_id=3):\n    __tablename__ = "posts"',
        'type_id=4):\n    __tablename__ = "posts"',
        "type_id 3 already belongs to User",
        "another type_id",
    ),
    "no declarative base": changed(
        "class User(ObjectMixin, type_id=3):\n    __tablename__ = 'users'",
        "ObjectMixin, ",
        "ObjectMixin, Base, ",
        "it has no declarative base",
        "class User(ObjectMixin, Base, type_id=3)",
    ),
    "a base of several classes without a base": changed(
        "class Stored(ObjectMixin):\n    pass",
        "ObjectMixin):\n    pass",
        "ObjectMixin, Base):\n    __abstract__ = True",
        "it has no declarative base",
        "class Stored(ObjectMixin, Base) with __abstract__ = True",
    ),
    "the mixin after the base": changed(
        USER.replace("ObjectMixin, Base", "Base, ObjectMixin"),
        "Base, ObjectMixin",
        "ObjectMixin, Base",
        "must precede the declarative base",
        "class User(ObjectMixin, Base, type_id=...)",
    ),
    "a table that is there": changed(
        "class User(ObjectMixin, Base, type_id=3):\n"
        "    __table__ = Table('users', Base.metadata)",
        "__table__ = Table('users', Base.metadata)",
        "__tablename__ = 'users'",
        "it already has a table",
        "with a __tablename__",
    ),
    "a second primary key": changed(
        USER + "    code: Mapped[str] = mapped_column(String(9), primary_key=True)",
        "String(9), primary_key=True",
        "String(9)",
        "its primary key is (local_id, code)",
        "leave out primary_key=True of other columns",
    ),
    "a schema": changed(
        USER + '    __table_args__ = {"schema": "db7"}',
        '    __table_args__ = {"schema": "db7"}',
        "",
        "is in schema 'db7'",
        "leave it out",
    ),
    "a name of the mixin": changed(
        USER + "    data: Mapped[str] = blob_field()",
        "    data:",
        "    facts:",
        "a blob field cannot be called 'data'",
        "rename it",
    ),
    "a column of the mixin": changed(
        USER + "    ts: Mapped[int] = mapped_column()",
        "    ts:",
        "    seen:",
        "User.ts would override an attribute",
        "rename it",
    ),
    "a mapped base": changed(
        USER + "class Admin(User, type_id=4):\n    pass",
        """
class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"
    name: Mapped[str] = blob_field(default="")
class Admin(User, type_id=4):
    pass""",
        """
class Person(ObjectMixin, Base):
    __abstract__ = True
    name: Mapped[str] = blob_field(default="")
class User(Person, type_id=3):
    __tablename__ = "users"
class Admin(Person, type_id=4):
    __tablename__ = "admins"
""",
        "its base User is mapped to a table of its own",
        "__abstract__ = True",
        "give each class a table",
    ),
    "a plain base that is mapped": changed(
        "class Named(Base):\n    __tablename__ = 'named'\n"
        "    nick: Mapped[str] = mapped_column(String(9), primary_key=True)\n"
        + USER.replace("ObjectMixin, Base", "ObjectMixin, Named"),
        "    __tablename__ = 'named'\n"
        "    nick: Mapped[str] = mapped_column(String(9), primary_key=True)",
        "    __abstract__ = True\n    nick: Mapped[str] = mapped_column(String(9))",
        "its base Named is mapped to a table of its own",
        "__abstract__ = True",
        "give each class a table",
    ),
    "a dataclass as base": changed(
        "@dataclasses.dataclass\nclass Named:\n    nick = ''\n"
        + USER.replace("(ObjectMixin", "(Named, ObjectMixin"),
        "@dataclasses.dataclass\n",
        "",
        "its base Named is a dataclass",
        "make it an ordinary class",
    ),
    "a dataclass after the base": changed(
        USER.replace("ObjectMixin, Base", "ObjectMixin, Base, MappedAsDataclass"),
        "ObjectMixin, Base, MappedAsDataclass",
        "MappedAsDataclass, ObjectMixin, Base",
        "MappedAsDataclass must precede the declarative base",
        "class User(MappedAsDataclass, ..., Base)",
    ),
    # -- classes that share a table
    "polymorphic_on a field": changed(
        ITEM,
        "kind: Mapped[str] = blob_field()",
        "kind: Mapped[str] = mapped_column(String(20))",
        "polymorphic_on='kind' is not a column",
        "kind: Mapped[str] = mapped_column(String(20))",
    ),
    "no polymorphic_on": Definition(
        USER + "class Admin(User):\n    pass",
        (
            "a table of its own without polymorphic_on",
            "kind: Mapped[str]",
            '{"polymorphic_on": "kind", "polymorphic_identity": ...}',
        ),
        ITEMS + BOOK,
    ),
    "a table beside that of the base": changed(
        ITEMS + BOOK + '    __tablename__ = "books"',
        '    __tablename__ = "books"',
        "",
        "it has its own table in addition to that of its base Item",
        "leave __tablename__ out",
    ),
    "a keyword of the whole table": changed(
        ITEMS + BOOK.replace("(Item)", "(Item, type_id=5)"),
        "(Item, type_id=5)",
        "(Item)",
        "type_id applies to the whole table",
        "leave it out",
    ),
    "a parent of some classes": Definition(
        ITEMS + BOOK + PARENT,
        ("book_id refers to objects of its own shard", "define it in Item"),
        ITEMS + PARENT + BOOK,
    ),
    "a field of the base again": changed(
        ITEMS + BOOK + "    kind: Mapped[str] = blob_field()",
        "    kind: Mapped[str] = blob_field()",
        "    sort: Mapped[str] = blob_field()",
        "kind is an attribute of Item",
        "rename it",
    ),
    "a field of a sibling": changed(
        ITEMS
        + BOOK
        + "    size: Mapped[int] = blob_field(default=7)\n"
        + BOOK.replace("Book", "Film").replace("book", "film")
        + "    size: Mapped[str | None] = blob_field(default=None)",
        "    size: Mapped[str",
        "    format: Mapped[str",
        "size is an attribute of Book",
        "rename it",
    ),
    "an abstract class with a type": changed(
        "class Person(ObjectMixin, Base, type_id=3):\n"
        "    __abstract__ = True\n"
        "class User(Person):\n    __tablename__ = 'users'",
        "Base, type_id=3):\n    __abstract__ = True\nclass User(Person)",
        "Base):\n    __abstract__ = True\nclass User(Person, type_id=3)",
        "it is abstract",
        "to its subclasses",
    ),
    # -- fields
    "no annotation": changed(
        USER + "    about = blob_field()",
        "    about =",
        "    about: Mapped[str] =",
        "about has no type annotation",
        "write about: Mapped[str] = blob_field()",
    ),
    "an argument for dataclasses": changed(
        USER + "    about: Mapped[str] = blob_field(default='', init=False)",
        ", init=False",
        "",
        "which are for dataclasses",
        "leave them out",
    ),
    "an annotation that is not found": changed(
        USER + '    about: Mapped["About"] = blob_field()',
        'Mapped["About"] = blob_field()',
        'Mapped["About"] = blob_field(type_=str)',
        "cannot be resolved",
        "blob_field(type_=...)",
    ),
    "a type that JSON does not have": changed(
        USER + "    tags: Mapped[set[str]] = blob_field()",
        "set[str]",
        "list[str]",
        "set[str] cannot be stored in a JSON blob",
        "list[",
    ),
    "one of two types": changed(
        USER + "    size: Mapped[int | str] = blob_field()",
        "int | str",
        "int | None",
        "would be ambiguous",
        "use one type (with | None)",
    ),
    "keys that are no text": changed(
        USER + "    sizes: Mapped[dict[int, str]] = blob_field()",
        "dict[int",
        "dict[str",
        "cannot be stored in a JSON blob",
        "use dict[str, ...]",
    ),
    "a class as a default": changed(
        USER + "    tags: Mapped[list[str]] = blob_field(default=list)",
        "default=list",
        "default_factory=list",
        "the default of tags is the class list",
        "default_factory=list",
    ),
    "a default that is shared": changed(
        USER + "    tags: Mapped[list[str]] = blob_field(default=[])",
        "default=[]",
        "default_factory=list",
        "would be shared by all objects",
        "default_factory=list",
    ),
    "two defaults": changed(
        USER + "    age: Mapped[int] = blob_field(default=1, default_factory=int)",
        "default=1, ",
        "",
        "has default and default_factory",
        "give one",
    ),
    "a factory that is none": changed(
        USER + "    age: Mapped[int] = blob_field(default_factory=1)",
        "default_factory=1",
        "default_factory=lambda: 1",
        "is not callable",
    ),
    "a default of another type": changed(
        USER + '    age: Mapped[int] = blob_field(default="x")',
        'default="x"',
        "default=1",
        "the default of User.age",
        "'x' (str) is not an int",
    ),
    "aliases that are a text": changed(
        USER + '    age: Mapped[int] = blob_field(aliases="old")',
        'aliases="old"',
        'aliases=("old",)',
        "aliases of age must be a tuple of str, not 'old'",
    ),
    "a key twice": changed(
        USER + '    nick: Mapped[str] = blob_field(aliases=("name",))',
        '("name",)',
        '("nickname",)',
        "the key 'name' of nick is already used by name",
        "give it another name",
    ),
    "a key of SQL": changed(
        USER + "    nick: Mapped[str] = blob_field(aliases=('\"',))",
        "'\"'",
        "'nickname'",
        "has a double quote",
        "give it another name",
    ),
    "a reference that is no int": changed(
        USER + "    boss_id: Mapped[str] = blob_field(ref=3)",
        "Mapped[str] = blob_field(ref=3)",
        "Mapped[int] = blob_field(ref=3)",
        "boss_id holds an id, which is an int",
        "write boss_id: Mapped[int]",
    ),
    "a reference to nothing": changed(
        USER + "    boss_id: Mapped[int] = blob_field(ref=3.5)",
        "3.5",
        '"User"',
        "boss_id refers to 3.5",
        "an object class, its name, or its type id",
    ),
    "a reference to a type that cannot be": changed(
        USER + "    boss_id: Mapped[int] = blob_field(ref=5000)",
        "5000",
        "1023",
        "boss_id refers to type 5000",
        "1023",
    ),
    "colocation without a field": changed(
        USER + POST.replace("2", '2, colocate_with="user_id"'),
        '    __tablename__ = "posts"',
        '    __tablename__ = "posts"\n    user_id: Mapped[int] = blob_field()',
        "colocate_with='user_id' names neither a blob field nor a column",
        "user_id: Mapped[int] = blob_field()",
    ),
    "colocation by a column of another type": changed(
        USER
        + POST.replace("2", '2, colocate_with="user_id"')
        + "    user_id: Mapped[int] = mapped_column()",
        "mapped_column()",
        "mapped_column(ObjectRef(3))",
        "the column user_id that colocates is of type",
        "user_id: Mapped[int] = mapped_column(ObjectRef(type_id))",
    ),
    # -- dataclasses in fields
    "a record with a parameter that is no field": changed(
        "@dataclasses.dataclass\nclass Size:\n"
        "    wide: int\n"
        "    high: int = dataclasses.field(init=False, default=1)\n"
        + USER
        + "    size: Mapped[Size | None] = blob_field(default=None)",
        "    high: int = dataclasses.field(init=False, default=1)",
        "    @property\n    def high(self): return 1",
        "is not a parameter of __init__",
        "Compute it in a property",
    ),
    "a record with a name of ours": changed(
        "@dataclasses.dataclass\nclass Size:\n    _owner: int\n"
        + USER
        + "    size: Mapped[Size | None] = blob_field(default=None)",
        "_owner",
        "owner",
        "is a name that tracked records use internally",
        "Rename it",
    ),
    "a record whose types are not found": changed(
        "@dataclasses.dataclass\nclass Size:\n    wide: 'Length'\n"
        + USER
        + "    size: Mapped[Size | None] = blob_field(default=None)",
        "@dataclasses",
        "Length = int\n@dataclasses",
        "the annotations of Size cannot be resolved",
        "define it at module level",
    ),
    "a record with a __new__": changed(
        RECORD.replace("wide", "def __new__(cls, *a): ...\n    wide"),
        "__new__(cls, *a)",
        "__post_init__(self)",
        "defines __new__",
        "use __post_init__",
    ),
    "a record with an InitVar": changed(
        RECORD.replace("wide: int", "wide: dataclasses.InitVar[int]"),
        "dataclasses.InitVar[int]",
        "int",
        "takes 'wide', which is not a field",
        "make it a field",
    ),
    "a record with an __init__": changed(
        RECORD.replace("wide: int", "wide: int\n    def __init__(self): ..."),
        "    def __init__(self): ...",
        "",
        "does not take the field 'wide'",
        "leave the __init__ to @dataclass",
    ),
    # -- mapping classes
    "a mapping of nothing": changed(
        LIKES.replace(", source=User, target=Post", ""),
        "(MappingMixin, Base)",
        "(MappingMixin, Base, source=User, target=Post)",
        "source or target is missing",
        "(MappingMixin, Base, source=Board, target=Pin)",
    ),
    "a mapping whose ends are given twice": changed(
        LIKES.replace("MappingMixin", "MappingMixin[User, Post]", 1),
        ", source=User, target=Post",
        "",
        "source and target are given twice",
        "leave out source= and target=",
    ),
    "a mapping before no base": changed(
        LIKES.replace("MappingMixin, Base", "MappingMixin"),
        "MappingMixin",
        "MappingMixin, Base",
        "it has no declarative base",
        "class UserLikesPosts(MappingMixin, Base, ",
    ),
    "a mapping of a class to itself": changed(
        LIKES.replace("target=Post", "target=User"),
        "target=User)",
        "target=User, source_column='follower_id', target_column='followee_id')",
        "would both be in a column 'user_id'",
        "source_column='follower_id', target_column='followee_id'",
    ),
    "a mapping to a class that has no ids": changed(
        LIKES.replace("target=Post", "target=int"),
        "target=int",
        "target=Post",
        "int is not an object class",
        "make it one",
    ),
    "a mapping of neither a class nor a name": changed(
        LIKES.replace("target=Post", "target=2"),
        "target=2",
        'target="Post"',
        "target=2",
        "it must be an object class or its name",
    ),
    "an abstract mapping": changed(
        LIKES.replace("    pass", "    __abstract__ = True"),
        ", source=User, target=Post):",
        "):",
        "it is abstract",
        "to its subclasses",
    ),
    "a column that is no name": changed(
        LIKES.replace("=Post)", '=Post, target_column="2nd")'),
        "2nd",
        "second",
        "target_column='2nd' is not a valid attribute name",
    ),
    "a column that mappings have": changed(
        LIKES.replace("=Post)", '=Post, target_column="sequence")'),
        '"sequence"',
        '"liked_id"',
        "is a reserved name of classes with MappingMixin",
        "use another",
    ),
    "a column that is a method": changed(
        LIKES.replace("=Post)", '=Post, target_column="page")'),
        '"page"',
        '"liked_id"',
        "would override the method",
        "target_column",
    ),
    "a method in place of one of ours": changed(
        LIKES.replace("    pass", "    page: Mapped[int]"),
        "page:",
        "number:",
        "would override an attribute of every mapping class",
        "rename it",
    ),
    "gaps that are always narrow": changed(
        LIKES.replace("=Post)", "=Post, narrow_below=9, respace_to=5)"),
        "respace_to=5",
        "respace_to=20",
        "narrow_below=9 is more than respace_to=5",
        "increase respace_to",
    ),
    "a number of moves": changed(
        LIKES.replace("=Post)", "=Post, respace_to=0)"),
        "respace_to=0",
        "respace_to=1",
        "respace_to=0",
        "a number of moves from 1 to",
    ),
    "a number of pieces": changed(
        LIKES.replace("=Post)", "=Post, spread=3, spread_over=8)"),
        "spread=3",
        "spread=4",
        "spread=3",
        "a power of two from 2 to",
    ),
    "a number of shards": changed(
        LIKES.replace("=Post)", "=Post, spread=4, spread_over=2)"),
        "spread_over=2",
        "spread_over=8",
        "spread_over=2",
        "4 or more",
    ),
    "a keyspace of its own": changed(
        LIKES.replace("=Post)", '=Post, keyspace="lists")').replace(
            "type_id=3", 'type_id=3, keyspace="objects"'
        ),
        ', keyspace="lists"',
        "",
        "keyspace='lists', but its source User is in 'objects'",
        "leave it out",
    ),
    "an inverse that is none": changed(
        LIKES + "class PostLikers(MappingMixin, Base, source=User, target=Post):\n"
        "    pass\n"
        "class Again(MappingMixin, Base, source=User, target=Post,"
        " inverse=PostLikers):\n    pass",
        "PostLikers(MappingMixin, Base, source=User, target=Post)",
        "PostLikers(MappingMixin, Base, source=Post, target=User)",
        "does not reverse",
        "the target Post as source, and the source User as target",
    ),
    "a name of no class": changed(
        LIKES.replace("target=Post", 'target="Pots"'),
        '"Pots"',
        "Post",
        "no class 'Pots' in its declarative base",
        "give the class itself",
    ),
    "an inverse that is not there": changed(
        LIKES.replace("=Post)", '=Post, inverse="PostInUsers")'),
        "class UserLikesPosts",
        "class PostInUsers(MappingMixin, Base, source=Post, target=User):"
        "\n    pass\nclass UserLikesPosts",
        "inverse='PostInUsers' is not a mapping class",
        "define it: class PinInBoards(MappingMixin, Base, source=Pin, ",
    ),
    "two that keep one": changed(
        LIKES + "class Of(MappingMixin, Base, source=Post, target=User):\n"
        "    pass\n"
        "class A(MappingMixin, Base, source=User, target=Post,"
        " inverse=Of):\n    pass\n"
        "class B(MappingMixin, Base, source=User, target=Post,"
        " inverse=Of ):\n    pass",
        ", inverse=Of )",
        ")",
        "is the inverse of another mapping, or has one",
        "set inverse= in one of the two only",
    ),
    "a column that nobody fills": changed(
        LIKES + "class Of(MappingMixin, Base, source=Post, target=User):\n"
        "    why: Mapped[str] = mapped_column(String(9))\n"
        "class A(MappingMixin, Base, source=User, target=Post,"
        " inverse=Of):\n    pass",
        "String(9)",
        "String(9), default=''",
        "has neither a default nor NULL",
        "use default=",
    ),
    # -- lookup classes
    "a lookup of nothing": changed(
        USER + "class UserName(LookupMixin, Base, "
        "normalize=normalization.exact):\n    pass",
        "Base, normalize",
        "Base, target=User, normalize",
        "target is missing",
        "class UserName(LookupMixin, Base, target=User, ",
    ),
    "an abstract lookup": changed(
        USER + "class Name(LookupMixin, Base, target=User, "
        "normalize=normalization.exact):\n    __abstract__ = True",
        ", target=User, normalize=normalization.exact",
        "",
        "it is abstract",
        "to its subclasses",
    ),
    "a policy that is a text": changed(
        USER + "class UserName(LookupMixin, Base, target=User, "
        'normalize="email"):\n    pass',
        '"email"',
        "normalization.email",
        "'email' is not a Normalization",
        "normalize=normalization.exact, .casefold, .email",
    ),
    "two policies of one name": changed(
        USER + "class UserName(LookupMixin, Base, target=User, "
        "normalize=normalization.exact, previous=normalization.exact ):"
        "\n    pass",
        ", previous=normalization.exact ",
        ", previous=normalization.casefold ",
        "two of its policies have the same label",
    ),
    "a target column that lookups have": changed(
        USER + "class UserName(LookupMixin, Base, target=User, "
        'target_column="key", normalize=normalization.exact):\n    pass',
        '"key"',
        '"owner_id"',
        "is a reserved name of classes with LookupMixin",
        "use another",
    ),
    "a target column that is a method": changed(
        USER + "class UserName(LookupMixin, Base, target=User, "
        'target_column="claim", normalize=normalization.exact):\n    pass',
        '"claim"',
        '"owner_id"',
        "would override the method",
        "target_column",
    ),
    "a field that is none": changed(
        USER + "class UserName(LookupMixin, Base, target=User, "
        'field="nick", normalize=normalization.exact):\n    pass',
        '"nick"',
        '"name"',
        "field='nick' is not an attribute of User",
        "name the one that holds the key",
    ),
    # -- reference classes
    "a reference class without a base": changed(
        "class Country(ReferenceMixin):\n"
        "    code: Mapped[str] = mapped_column(String(2), primary_key=True)",
        "ReferenceMixin",
        "ReferenceMixin, Base",
        "it has no declarative base",
        "class Country(ReferenceMixin, Base)",
    ),
    "an abstract reference class": changed(
        "class Lists(ReferenceMixin, Base, keyspace='x'):\n"
        "    __abstract__ = True\n"
        "class Country(Lists):\n"
        "    code: Mapped[str] = mapped_column(String(2), primary_key=True)",
        "Base, keyspace='x'):\n    __abstract__ = True\nclass Country(Lists)",
        "Base):\n    __abstract__ = True\nclass Country(Lists, keyspace='x')",
        "it is abstract",
        "pass keyspace to its subclasses",
    ),
    "a reference class that the server numbers": changed(
        COUNTRY.replace("String(2), ", "").replace("[str]", "[int]"),
        "primary_key=True",
        "primary_key=True, autoincrement=False",
        "its keys would be generated on each shard separately",
        "mapped_column(primary_key=True, autoincrement=False)",
    ),
    "a reference class with a value of the server": changed(
        COUNTRY + "    name: Mapped[str] = mapped_column("
        "String(9), server_default='x')",
        "server_default",
        "default",
        "the values of its column 'name' would be generated",
        "use default=",
    ),
    "a reference class with a reference": changed(
        USER + COUNTRY + "    king_id: Mapped[int] = mapped_column(ShardedId(3))",
        "ShardedId(3)",
        "ObjectRef()",
        "its column 'king_id' refers to an object of the row's own shard",
        "use ObjectRef()",
    ),
    "a reference class with a foreign key": changed(
        COUNTRY + "    of: Mapped[str] = mapped_column("
        "String(2), ForeignKey('country.code'))",
        ", ForeignKey('country.code')",
        "",
        "its column 'of' has a foreign key",
        "leave it out",
    ),
    "a reference class that is unique": changed(
        COUNTRY + "    name: Mapped[str] = mapped_column(String(9), unique=True)",
        ", unique=True",
        "",
        "it has a unique constraint",
        "check the rows before you write them instead",
    ),
    # -- plain classes
    "a kind for objects": changed(
        "class Country(KeyspaceMixin, Base, keyspace='x', kind='objects'):\n"
        "    __tablename__ = 'countries'\n"
        "    code: Mapped[str] = mapped_column(String(2), primary_key=True)",
        "'objects'",
        "'global'",
        "kind='objects'",
        "global or mod",
    ),
    "a keyspace in a class of another's table": changed(
        "class Place(KeyspaceMixin, Base, keyspace='x'):\n"
        "    __tablename__ = 'places'\n"
        "    code: Mapped[str] = mapped_column(String(2), primary_key=True)\n"
        "class Town(Place, keyspace='y'):\n    pass",
        "Place, keyspace='y'",
        "Place",
        "keyspace='y', but its base Place",
        "set the keyspace in the base only",
    ),
    # -- many-to-many
    "a link between shards": changed(
        USER
        + "    posts = relationship('Post', secondary='links')\n"
        + POST
        + "Table('links', Base.metadata,\n"
        "    Column('u', ForeignKey('users.local_id'), primary_key=True),\n"
        "    Column('p', ForeignKey('posts.local_id'), primary_key=True))",
        "    posts = relationship('Post', secondary='links')\n"
        + POST
        + "Table('links', Base.metadata,\n"
        "    Column('u', ForeignKey('users.local_id'), primary_key=True),\n"
        "    Column('p', ForeignKey('posts.local_id'), primary_key=True))",
        POST + "class UserHasPosts(MappingMixin, Base, source=User, target=Post): ...",
        "objects of User and Post may be on different shards",
        "class UserHasPosts(MappingMixin, Base, source=User, target=Post): ..",
    ),
    "a link column of another type": changed(
        USER
        + "    posts = relationship('Post', secondary='links')\n"
        + POST.replace("2", '2, colocate_with="user_id"')
        + "    user_id: Mapped[int] = blob_field(ref=User)\n"
        + "Table('links', Base.metadata,\n"
        "    Column('u', ObjectRef(3), ForeignKey('users.local_id'),"
        " primary_key=True),\n"
        "    Column('p', ForeignKey('posts.local_id'), primary_key=True))",
        "ObjectRef(3), ",
        "",
        "but refers to an id",
        "Leave out the type",
    ),
    "a link to a global table": changed(
        USER
        + "    tags = relationship('Tag', secondary='links')\n"
        + "class Tag(Base):\n    __tablename__ = 'tags'\n"
        "    id: Mapped[str] = mapped_column(String(9), primary_key=True)\n"
        "Table('links', Base.metadata,\n"
        "    Column('u', ForeignKey('users.local_id'), primary_key=True),\n"
        "    Column('t', ForeignKey('tags.id'), primary_key=True))",
        "class Tag(Base)",
        "class Tag(ReferenceMixin, Base)",
        "Tag is in a keyspace of kind 'global'",
        "a reference table (ReferenceMixin)",
    ),
}


def define(code: str) -> None:
    """Run the code of a module that defines classes, and configure them."""
    module = types.ModuleType("tests.suites.remedy_classes_module")
    # SQLAlchemy reads annotations where the module is.
    sys.modules[module.__name__] = module
    names: dict[str, Any] = module.__dict__
    try:
        exec(PRELUDE, names)  # noqa: S102  # what is tested is code
        exec(code, names)  # noqa: S102  # as above
        configure_mappers()
        for cls in list(names["Base"].registry._class_registry.values()):
            if hasattr(cls, "__sqla_shard_mapping__"):
                link(cls)
    finally:
        names["Base"].registry.dispose()
        del sys.modules[module.__name__]


def refusal(case: Definition) -> str:
    """Return the message of a refusal."""
    with pytest.raises(exc.ShardError) as caught:
        define(case.refused)
    return str(caught.value)


class Definitions:
    @pytest.mark.parametrize("name", CLASSES)
    def test_the_remedy_of_the_message_works(self, name: str) -> None:
        case = CLASSES[name]
        in_order(refusal(case), case.names)
        define(case.remedy)


def in_order(message: str, names: tuple[str, ...]) -> None:
    """Check that a message names the problem, and then the remedy."""
    at = 0
    for part in names:
        found = message.find(part, at)
        assert found >= 0, f"{part!r} is not in order in: {message}"
        at = found + len(part)
