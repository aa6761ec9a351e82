"""Errors of tasks, jobs and workers."""

from __future__ import annotations

from sqla_shard.exc.base import bullets, cut, MessageError, ShardError, shortened_list


class JobError(ShardError):
    """Base of the errors of jobs."""


class TaskDefinitionError(JobError, MessageError, TypeError):
    """Raised for a function that cannot be a task.

    :ivar task: name of the task.
    """

    task: str
    _text = "task {task!r}: {message}"


class UnknownTaskError(JobError, LookupError):
    """Raised for a job whose task is not defined in this process.

    The job stays in its table, and is tried again.

    :ivar task: name of the task.
    """

    task: str
    _text = (
        "task {task!r} is not defined in this process; import the module that "
        "defines it. The job stays in its queue, and is tried again later"
    )


class JobArgumentError(JobError, MessageError, ValueError):
    """Raised for an argument that a job cannot hold.

    :ivar task: name of the task.
    :ivar parameter: name of its parameter; None if the error is about all of
        them.
    """

    task: str
    parameter: str | None

    def _describe(self, message: str) -> str:
        what = "its arguments"
        if self.parameter is not None:
            what = f"{self.parameter}="
        return f"task {self.task!r}: {what} {message}"


class JobOptionError(JobError, MessageError, ValueError):
    """Raised for an option of a task, a job or a worker that is not valid.

    :ivar option: name of the option.
    :ivar value: the value that was given.
    """

    option: str
    value: object

    def _describe(self, message: str) -> str:
        return f"{self.option}={cut(self.value)}: {message}"


class JobClaimLostError(JobError):
    """Raised when the claim of a job is not valid any more.

    The claim has expired, or the job was acknowledged, released or deleted.
    Nothing was changed: another worker may be running the job.

    :ivar jobs: the jobs, as text: keyspace, shard and number.
    """

    jobs: tuple[str, ...]

    def _describe(self) -> str:
        shown = shortened_list(self.jobs)
        return (
            f"the claim of {shown} is lost: it has expired, or the job was "
            "finished or deleted; another worker may be running it. Nothing "
            "was changed. Roll back what this worker has done for it"
        )


class JobTimeLimitError(JobError, TimeoutError):
    """Raised in a task that has run longer than its time limit.

    The attempt has failed; the job is tried again like after any error.

    :ivar task: name of the task.
    :ivar seconds: the time limit.
    """

    task: str
    seconds: float
    _text = (
        "task {task!r} has run longer than its time limit of {seconds:g} s; "
        "make it faster, store progress in smaller steps, or raise time_limit"
    )


class NoHealthyShardsError(JobError):
    """Raised when no server with shards can take a job.

    :ivar keyspace: the keyspace.
    :ivar servers: by the name of each server that was tried, its error.
    """

    keyspace: str
    servers: dict[str, str]

    def _describe(self) -> str:
        lines = [f"{name}: {error}" for name, error in self.servers.items()]
        why = bullets(lines) if lines else " all weights are 0"
        return f"no server of keyspace {self.keyspace!r} takes jobs:{why}"


class UnsafeBinaryLogError(JobError):
    """Raised when a server writes statements to its binary log.

    A claim skips rows that are locked; a replica that executes the statement
    would claim others.

    :ivar server: name of the server.
    """

    server: str
    _text = (
        "server {server} has binlog_format=STATEMENT, with which a replica "
        "would claim other jobs than its primary; set binlog_format to ROW "
        "or MIXED"
    )
