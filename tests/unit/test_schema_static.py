"""Revisions that are proven static, and those that must not be."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest

from sqla_shard.schema.replay import is_static
from sqla_shard.schema.revisions.types import BLOB_TEXT, UPDATED_AT

HEAD = """\
from __future__ import annotations

from typing import Sequence, Union

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision: str = "a1"
down_revision: Union[str, Sequence[str], None] = None
branch_labels = None
depends_on: str | None = None
"""
ADD = "op.add_column('t', sa.Column('c', sa.Integer()))"


def proven(path: Path, source: str | bytes) -> bool:
    """Tell whether ``upgrade()`` of a source is, which Python accepts."""
    data = source if isinstance(source, bytes) else source.encode()
    compile(data, "revision.py", "exec")
    (path / "revision.py").write_bytes(data)
    return is_static(str(path / "revision.py"), "upgrade")


def module(body: str, head: str = HEAD) -> str:
    text = indent(dedent(body).strip(), "    ")
    return f"{head}\n\ndef upgrade() -> None:\n{text}\n"


STATIC = [
    "pass",
    '"""Nothing."""',
    ADD,
    "op.add_column('t', sa.Column('c', sa.Integer))",
    "op.add_column('t', sa.Column('c', sa.types.Integer(), key='k'))",
    "op.add_column('t', sa.Column('c', mysql.BIGINT(unsigned=True)))",
    "op.add_column('t', sa.Column('c', sa.dialects.mysql.TINYINT()))",
    "op.add_column('t', sa.Column('c', sa.Text(), server_default=sa.null()))",
    "op.alter_column('t', 'c', server_default=sa.text('now()'))",
    "op.alter_column('t', 'c', server_default=sa.func.now())",
    "op.alter_column('t', 'c', server_default=None, existing_nullable=True)",
    (
        "op.alter_column('t', 'c', type_=sa.Text().with_variant("
        "mysql.TEXT(charset='ascii'), 'mysql').with_variant(sa.CHAR(9), 'x'))"
    ),
    (
        "op.create_index(op.f('i'), 't', ['a', sa.text('b DESC')], "
        "unique=False, mysql_length={'a': 10, 'b': -1})"
    ),
    "op.create_index('i', 't', [sa.literal_column('lower(a)')])",
    (
        "op.create_table('t', "
        "sa.Column('a', sa.Integer(), sa.Computed('b', )), "
        "sa.ForeignKeyConstraint(['a'], ['u.b'], ondelete='CASCADE'), "
        "sa.PrimaryKeyConstraint('a'), mysql_engine='InnoDB', prefixes=[])"
    ),
    "op.create_table('t', *[sa.Column('a', sa.Integer())])",
    (
        "op.create_table('t', listeners=[('after_create', "
        "sa.DDL('CREATE ' 'TRIGGER').execute_if(dialect='sqlite'))])"
    ),
    "op.drop_table('t', if_exists=True)",
    "op.drop_constraint('k', 't', type_='foreignkey')",
    "op.create_foreign_key(None, 't', 'u', ['a'], ['b'], use_alter=True)",
    "op.rename_table('t', 'u')",
    "op.execute('ALTER TABLE t ADD COLUMN c INT')",
    "op.execute('DROP TABLE t')",
    f"{ADD}\nop.drop_column('t', 'd')",
]

#: Bodies of upgrade().
DYNAMIC = [
    # Python that decides or computes
    f"if True:\n    {ADD}",
    f"for n in (1, 2):\n    {ADD}",
    f"while True:\n    {ADD}",
    f"with op.f('x'):\n    {ADD}",
    f"try:\n    {ADD}\nfinally:\n    pass",
    f"match 1:\n    case _:\n        {ADD}",
    "name = 't'\nop.drop_table(name)",
    "name: str = 't'",
    "op.drop_table(revision)",
    "op.drop_table(f't{1}')",
    "op.drop_table(f't')",
    "op.drop_table('t' + 'u')",
    "op.drop_table('t%s' % 1)",
    "op.drop_table('t'.upper())",
    "op.drop_table('t' if revision else 'u')",
    "op.drop_table('t' or 'u')",
    "op.drop_table(['t'][0])",
    "op.drop_table(name := 't')",
    "op.drop_table((lambda: 't')())",
    "op.drop_table(str(1))",
    "op.drop_table(print('x'))",
    "op.drop_table(*['t'], *['u'])",
    "op.drop_table(*names)",
    "op.drop_table(**{'table_name': 't'})",
    "op.drop_table({**{}})",
    "op.drop_table([*'t'])",
    "op.drop_table({'t'})",
    "op.drop_table(set())",
    "op.create_table('t', *[sa.Column(n, sa.Text()) for n in 'ab'])",
    "op.create_table('t', *(sa.Column(n, sa.Text()) for n in 'ab'))",
    "op.create_table('t', prefixes=[n for n in 'ab'])",
    "op.create_table('t', prefixes=not 1)",
    "op.create_table('t', prefixes=~1)",
    "[op.drop_table(n) for n in 'ab']",
    "op.drop_table('t') or op.drop_table('u')",
    "op.drop_table('t') if op else None",
    "return op.drop_table('t')",
    "return",
    "yield",
    "assert op.f('t')",
    "raise ValueError",
    "del op",
    "global op",
    "import os",
    "from os import environ",
    "def op(): pass",
    "class op: pass",
    "op = None",
    "op.x = 1",
    "op: int",
    "(op := None)",
    "global sa\nsa = None",
    "__import__('os').environ.get('x')",
    "eval('1')",
    "f'{op}'",
    "op",
    "...\nupgrade()",
    # what looks at the database, or goes its own way
    "op.get_bind()",
    "op.get_bind().execute(sa.text('x'))",
    "op.get_context()",
    "op.drop_table(op.get_bind())",
    "op.inline_literal('x')",
    "op.bulk_insert(sa.table('t'), [{'a': 1}])",
    "op.run_async(print)",
    "op.invoke(1)",
    "op.unknown('t')",
    "op.create_exclude_constraint('x', 't', ('a', '='))",
    "op.batch_alter_table('t')",
    "with op.batch_alter_table('t') as batch:\n    batch.drop_column('c')",
    "op.f('x')",
    "op.drop_table(op.f.__call__('t'))",
    "op.drop_table(op.f.__get__('t'))",
    "op.drop_table(op.x.f('t'))",
    "op.drop_table(op.f(revision))",
    "op.drop_table(op.f('t', x=1))",
    "op.drop_table(op.f)",
    "op.create_table.__call__('t')",
    "op.create_table('t').create(1)",
    "sa.inspect(op)",
    "sa.text('x')",
    "op.drop_table(sa.inspect('t'))",
    "op.drop_table(sa.create_engine('sqlite://'))",
    "op.drop_table(sa.engine.create_engine('sqlite://'))",
    "op.drop_table(sa.engine.url.make_url('x'))",
    "op.drop_table(sa.util.langhelpers.os.getenv('x'))",
    "op.drop_table(sa.sql.sqltypes.dt.datetime.now())",
    "op.drop_table(sa.__builtins__.get('x'))",
    "op.drop_table(sa.__doc__)",
    "op.drop_table(sa.event.listen('a', 'b', 'c'))",
    "op.drop_table(sa.select(1))",
    "op.drop_table(sa.MetaData())",
    "op.drop_table(sa.Table('t', 'm'))",
    "op.drop_table(sa.Sequence('s'))",
    "op.drop_table(sa.Integer.__subclasses__())",
    "op.drop_table(sa.Enum.adapt('x'))",
    "op.drop_table(sa.text('x').bindparams())",
    "op.drop_table(sa.text('x').bindparams().with_variant('x'))",
    "op.drop_table(sa.text(f'x'))",
    "op.drop_table(sa.text(revision))",
    "op.drop_table(sa.text(text='x', **{}))",
    "op.drop_table(sa.func)",
    "op.drop_table(sa.func('x'))",
    "op.drop_table(sa.func.a.b('x'))",
    "op.drop_table(sa.func._x('x'))",
    "op.drop_table(sa.func.now(revision))",
    "op.drop_table(sa.func.now().execute())",
    "op.drop_table(mysql.insert('x'))",
    "op.drop_table(mysql.dialect())",
    "op.drop_table(mysql.base.dt.datetime.now())",
    "op.drop_table(sa.types.util.os.getenv('x'))",
    "op.add_column('t', sa.Column('c', sa.Integer(), default=print))",
    "op.add_column('t', sa.Column('c', sa.Integer(), _proxies=[]))",
    "op.create_table('t', _x=1)",
    "op.create_table('t', listeners=[('after_create', print)])",
    "op.create_table('t', listeners=[('after_create', sa.DDL('x'))])",
    (
        "op.create_table('t', listeners=[('after_create', "
        "sa.DDL('x').execute_if(dialect='mysql'))])"
    ),
    (
        "op.create_table('t', listeners=[('after_create', "
        "sa.DDL('x').execute_if(callable_=print))])"
    ),
    (
        "op.create_table('t', listeners=[('after_create', "
        "sa.DDL('x').execute_if(dialect='sqlite', callable_=sa.Text))])"
    ),
    (
        "op.create_table('t', listeners=[('after_create', "
        "sa.DDL('x', context={}).execute_if(dialect='sqlite'))])"
    ),
    (
        "op.create_table('t', listeners=[('after_create', "
        "sa.DDL(revision).execute_if(dialect='sqlite'))])"
    ),
    (
        "op.create_table('t', listeners=[('after_create', "
        "sa.DDL('x').against(1).execute_if(dialect='sqlite'))])"
    ),
    # text
    "op.execute(f'DROP TABLE t')",
    "op.execute(b'DROP TABLE t')",
    "op.execute(sa.text('DROP TABLE t'))",
    "op.execute('DROP TABLE ' 't' + 'u')",
    "op.execute('DROP TABLE :t')",
    "op.execute('DROP TABLE t', {'a': 1})",
    "op.execute('DROP TABLE t', execution_options={})",
    "op.execute(sqltext='DROP TABLE t')",
    "op.execute(*['DROP TABLE t'])",
    "op.execute('DROP TABLE t; DROP TABLE u')",
    "op.execute('CREATE TABLE t AS SELECT * FROM u')",
    "op.execute('INSERT INTO t VALUES (1)')",
    "op.execute('UPDATE t SET a = 1')",
    "op.execute('SELECT 1')",
    "op.execute('USE db00001')",
    "op.execute('SET @x = 1')",
    "op.execute('/*! DROP TABLE t */')",
    "op.execute('CALL p()')",
    "op.execute('TRUNCATE TABLE t')",
    "op.execute('PREPARE s FROM @x')",
    "op.execute('')",
]

#: Code in a module in addition to a static upgrade().
MODULES = [
    "op.get_bind()",
    "print('x')",
    "import os",
    "import alembic",
    "import sqlalchemy.event",
    "import myapp.models",
    "from myapp import models",
    "from alembic import context",
    "from alembic import op as o",
    "from . import common",
    "from .alembic import op",
    "from .typing import Any",
    "from sqlalchemy import *",
    "from typing import *",
    "from typing import sys as sa",
    "from typing import Any as op",
    "from collections.abc import Sized as upgrade",
    "from sqlalchemy import text as op",
    "from sqlalchemy.dialects import mysql as sa",
    "from sqlalchemy.ext.declarative import compiles",
    "from sqlalchemy.util import langhelpers",
    "import sqlalchemy as op",
    "op = None",
    "sa = 1",
    "op: int = 1",
    "upgrade = 1",
    "sa.text = 1",
    "sa.Column.inherit_cache = True",
    "names = {}\nnames['op'] = 1",
    "(op, x) = (1, 2)",
    "x = op",
    "x = print()",
    "x = f'{op}'",
    "x = set()",
    "x = [n for n in 'ab']",
    "x = lambda: 1",
    "x = (y := 1)",
    "x += 1",
    "x: int",
    "x: sa.event.listen(1, 2, 3) = 1",
    "x: sa.text = 1",
    "x: (lambda: 1) = 1",
    "x: [n for n in 'ab'] = 1",
    "del op",
    "if True:\n    from os import path as op",
    "if True:\n    def upgrade(): pass",
    "try:\n    import os\nexcept ImportError:\n    pass",
    "for op in ():\n    pass",
    "with open('x') as op:\n    pass",
    "assert op",
    "class op:\n    pass",
    "class Anything:\n    pass",
    "class Anything(sa.Table):\n    x = op.get_bind",
    "def op():\n    pass",
    "def sa():\n    pass",
    "def upgrade(op=1):\n    pass",
    "async def upgrade():\n    pass",
    "@sa.event.listens_for(sa.Table, 'after_create')\ndef f(*a):\n    pass",
    "@print\ndef f():\n    pass",
    "def f(x=op.get_bind()):\n    pass",
    "def f(*, x=op.get_bind()):\n    pass",
    "def f(x: op.get_bind()):\n    pass",
    "def f(*x: print(1)):\n    pass",
    "def f(**x: print(1)):\n    pass",
    "def f() -> print(1):\n    pass",
    "def __getattr__(name):\n    pass",
    "__builtins__ = {}",
    (
        "from sqlalchemy.ext.compiler import compiles\n"
        "@compiles(sa.Column)\ndef f(element, compiler, **kw):\n    pass"
    ),
]

if sys.version_info >= (3, 12):
    MODULES += ["type x = op.get_bind()", "def f[T: op.get_bind()]():\n    pass"]

HARMLESS = [
    "from collections.abc import Iterable as Things",
    "import sqlalchemy\nimport sqlalchemy.dialects.mysql",
    "x = y = {'a': [1, -2], 'b': (None, 'x')}",
    (
        "def other(a: int, *b: str, c: list[int] | None = None) -> None:\n"
        "    op.execute(str(a))"
    ),
    "def downgrade() -> None:\n    global op\n    op.get_bind()",
    "'A text.'",
    "x = 1  # type: ignore",
]

PORTABLE = f"""\
import sqlalchemy as sa
from alembic import op
{UPDATED_AT.format(on_sqlite="(x)", on_mysql="CURRENT_TIMESTAMP")}

def upgrade():
    op.add_column('t', sa.Column('c', sa.Text(), server_default=UpdatedAt()))
"""

BLOB = f"""\
import sqlalchemy as sa
from alembic import op
{BLOB_TEXT}

def upgrade():
    op.add_column('t', sa.Column('c', sa.Text().with_variant(
        BlobText('TEXT'), 'mysql', 'mariadb')))
"""


@pytest.mark.parametrize("body", STATIC)
def test_proven(tmp_path: Path, body: str) -> None:
    assert proven(tmp_path, module(body))


@pytest.mark.parametrize("body", DYNAMIC)
def test_not_proven(tmp_path: Path, body: str) -> None:
    # Were it for the rest of the module, the case would show nothing.
    assert proven(tmp_path, module(ADD))
    assert not proven(tmp_path, module(body))
    assert not proven(tmp_path, module(f"{dedent(body)}\n{ADD}"))


@pytest.mark.parametrize("more", MODULES)
def test_module_that_could_change_the_meaning(tmp_path: Path, more: str) -> None:
    assert not proven(tmp_path, f"{module(ADD)}\n{more}\n")
    source = module(ADD, f"{HEAD}{more}\n")
    assert not proven(tmp_path, source)


@pytest.mark.parametrize("more", HARMLESS)
def test_module_that_could_not(tmp_path: Path, more: str) -> None:
    assert proven(tmp_path, f"{module(ADD)}\n{more}\n")


@pytest.mark.parametrize(
    ("imported", "column"),
    [
        ("from sqlalchemy import Column, Text", "Column('c', Text())"),
        ("from sqlalchemy import Column as C, Text", "C('c', Text)"),
        (
            (
                "from sqlalchemy.schema import Column\n"
                "from sqlalchemy.dialects.mysql import TEXT as Words"
            ),
            "Column('c', Words(9))",
        ),
        (
            "import sqlalchemy.dialects.mysql as m\nimport sqlalchemy",
            "sqlalchemy.Column('c', m.TEXT())",
        ),
    ],
)
def test_other_ways_to_import(tmp_path: Path, imported: str, column: str) -> None:
    body = f"op.add_column('t', {column})"
    head = f"from alembic import op\n{imported}\n"
    assert proven(tmp_path, module(body, head))
    assert not proven(tmp_path, module(body, "from alembic import op\n"))
    assert not proven(tmp_path, module(body, f"{imported}\n"))


@pytest.mark.parametrize(
    "signature",
    [
        "def upgrade(name='t')",
        "def upgrade(*names)",
        "def upgrade(**names)",
        "@op.f\ndef upgrade()",
        "def upgrade() -> op.get_bind()",
        "async def upgrade()",
        "class upgrade",
        "def upgrades()",
    ],
)
def test_other_functions(tmp_path: Path, signature: str) -> None:
    assert not proven(tmp_path, f"{HEAD}\n{signature}:\n    {ADD}\n")


def test_each_direction_by_itself(tmp_path: Path) -> None:
    source = f"{module(ADD)}\n\ndef downgrade():\n    op.get_bind()\n"
    assert proven(tmp_path, source)
    assert not is_static(str(tmp_path / "revision.py"), "downgrade")


@pytest.mark.parametrize(
    "source", [PORTABLE, BLOB, PORTABLE.replace("\n\ndef", f"{BLOB_TEXT}\n\ndef")]
)
def test_portable_class(tmp_path: Path, source: str) -> None:
    assert proven(tmp_path, source)
    formatted = ast.unparse(ast.parse(source))
    assert formatted != source
    assert proven(tmp_path, formatted)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(sa.types.UserDefinedType)", "(sa.types.TypeDecorator)"),
        ("    cache_ok = True", "    cache_ok = op.get_bind()"),
        ("        self.name = name", "        self.name = op.get_bind()"),
        ("@compiles(BlobText)", "@compiles(sa.Column)"),
        ("@compiles(BlobText)", "@compiles(BlobText)\n@print"),
        ("compiler.dialect.is_mariadb", "compiler.dialect.url"),
        ("utf8mb4_nopad_bin", "utf8mb4_general_ci"),
        ("BlobText('TEXT')", "BlobText()"),
        ("BlobText('TEXT')", "BlobText(op.get_bind())"),
        ("BlobText('TEXT')", "BlobText('TEXT', name='x')"),
        ("BlobText('TEXT')", "BlobText"),
    ],
)
def test_portable_type_that_was_changed(tmp_path: Path, old: str, new: str) -> None:
    assert BLOB.count(old) == 1
    assert not proven(tmp_path, BLOB.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(sa.ColumnElement)", "(sa.Table)"),
        ("(sa.ColumnElement)", "(sa.ColumnElement, metaclass=type)"),
        ("    inherit_cache = True", "    inherit_cache = op.get_bind()"),
        ("    inherit_cache = True", "    def __init__(self): pass"),
        ("@compiles(UpdatedAt)", "@compiles(sa.Column)"),
        ("@compiles(UpdatedAt)", "@compiles(UpdatedAt)\n@print"),
        ("**kw)", "kw=op.get_bind())"),
        ('return "(x)"', "return str(element)"),
        ('return "(x)"', 'return f"(x)"'),
        ('return "(x)"', 'print()\n        return "(x)"'),
        ('== "sqlite"', '!= "sqlite"'),
        ("compiler.dialect.name", "compiler.dialect.url"),
        ("=UpdatedAt()", "=UpdatedAt(1)"),
        ("=UpdatedAt()", "=UpdatedAt"),
        ("=UpdatedAt()", "=UpdatedAt().label('x')"),
        ("import sqlalchemy as sa", "from sqlalchemy.dialects import mysql as sa"),
        ("import compiles", "import deregister as compiles"),
        ("import compiles", "import compiles\nfrom typing import Any as UpdatedAt"),
    ],
)
def test_portable_class_that_was_changed(tmp_path: Path, old: str, new: str) -> None:
    assert PORTABLE.count(old) == 1
    assert not proven(tmp_path, PORTABLE.replace(old, new))


def test_function_without_its_class(tmp_path: Path) -> None:
    begin, end = PORTABLE.index("class UpdatedAt"), PORTABLE.index("@comp")
    for line in ("", "from sqlalchemy import Column as UpdatedAt\n"):
        source = PORTABLE[:begin] + line + PORTABLE[end:]
        source = source.replace("server_default=UpdatedAt()", "")
        assert not proven(tmp_path, source)


def test_source_in_another_encoding(tmp_path: Path) -> None:
    # A comment in UTF-8 that is a line of code in UTF-7.
    hidden = "# +AAo-    op.get_bind()".encode("ascii")
    plain = module(ADD).encode() + b"    " + hidden + b"\n"
    assert proven(tmp_path, plain)
    assert not proven(tmp_path, b"# coding: utf-7\n" + plain)
    assert proven(tmp_path, b"\xef\xbb\xbf" + plain)


def test_invalid_sources(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def upgrade(:")
    zeros = tmp_path / "zeros.py"
    zeros.write_bytes(b"\0" * 9)
    odd = tmp_path / "odd.py"
    odd.write_bytes(b"x = '\xff'")
    compiled = tmp_path / "revision.pyc"
    compiled.write_text(module(ADD))
    deep = tmp_path / "deep.py"
    deep.write_text(f"x = {'(' * 9999}1{')' * 9999}")
    for path in (broken, zeros, odd, compiled, deep, tmp_path / "none.py"):
        assert not is_static(str(path), "upgrade")
    assert not is_static(None, "upgrade")
