"""Transactions: the current step of every tensor, and whether the step's new states are kept.

A tensor is settled, which means that its last step is committed or rolled back, when its next step
begins. Until then, ``fail`` can roll back all tensors of the step together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence

from hvd_sparse.collectives.contract import Placement
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption, SparseError
from hvd_sparse.step.records import Devices, StepRun
from hvd_sparse.step.stats import Sent, Stats
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import TensorSpec


class Transactions:
    """The states of all tensors, their current steps, and the counters. The class is thread-safe.
    ``on_begin`` is called with every new step while the lock is held."""

    def __init__(self, configuration: Configuration, specs: Sequence[TensorSpec]) -> None:
        self._configuration = configuration
        self._specs = specs
        self._states: dict[int, TensorState] = {}
        self._staged_by: dict[int, StepRun] = {}
        self._run = StepRun(is_closed=True)
        self.placement: Placement | None = None
        self.devices: Devices | None = None
        self.lock = threading.RLock()
        self.stats = Stats(self.lock, self._uncommitted)
        self.on_begin: Callable[[StepRun], None] | None = None

    def open_run(self, position: int | None) -> StepRun:
        """Return the current step, which a tensor then enters. If the current step is closed or
        already has the tensor, begin a new step, and return that. ``position`` is None for an
        unregistered tensor."""
        with self.lock:
            run = self._run
            if run.is_closed or position in run.entered:
                self._run = run = StepRun()
                self.stats.settle()
                if self.on_begin is not None:
                    self.on_begin(run)
            return run

    def enter(self, position: int) -> tuple[StepRun, TensorState]:
        """Commit or roll back a tensor's last step, and add the tensor to the current step or to a
        new one. Return this step and the tensor's state. The caller holds the lock."""
        # Inlined ``open_run`` and ``_settle``, because every tensor calls this in every step.
        run = self._run
        if run.is_closed or position in run.entered:
            run = self.open_run(position)
        last, state = self._staged_by.get(position), self._states.get(position)
        if state is None or last is None or last.failure is not None or last.nonfinite:
            state = self.state_of(position)
        elif position in last.completed:
            self.stats.committed.append(state.commit())
        else:
            state.roll_back()
        self._staged_by[position] = run
        run.entered.add(position)
        return run, state

    def close(self, *, is_over: bool) -> None:
        """Close the current step. Raises InvalidOption if some of its tensors are not completed,
        unless ``is_over`` states that no caller waits for their results any more."""
        with self.lock:
            waiting = self._run.entered - self._run.completed
            if waiting and not (is_over or self._run.is_closed):
                names = ", ".join(repr(self._specs[position].key) for position in sorted(waiting))
                raise InvalidOption(
                    f"a step is running, and {names} has no result yet: change groups between steps"
                )
            self._run.is_closed = True

    def fail(self, run: StepRun, failure: BaseException) -> None:
        if not isinstance(failure, Exception):  # an interrupt must not be raised a second time
            failure = SparseError(f"the step was interrupted by {type(failure).__name__}")
        with self.lock:
            run.is_closed = True
            run.failure = run.failure or failure
            # Tensors that have begun another step since then are not affected.
            for position in run.entered:
                if self._staged_by.get(position) is run:
                    self._settle(position)

    def drop(self, position: int, run: StepRun) -> None:
        """Undo a tensor's step at once, because no rank uses its result. The step no longer waits
        for this tensor: when all other tensors have results, their new states can be read."""
        with self.lock:
            run.is_closed = True
            if self._staged_by.get(position) is run:
                del self._staged_by[position]
                self._states[position].roll_back()
            run.entered.discard(position)
            for bucket in run.buckets.values():
                bucket.entered.discard(position)
                bucket.sending.pop(position, None)

    def leave_no_trace(self, run: StepRun, position: int) -> None:
        """Mark a step in which a tensor had NaN or Inf, so that the step is rolled back when the
        next one begins."""
        with self.lock:
            self.stats.nonfinite_steps += run.is_finite
            run.nonfinite.add(position)

    def keep(self, run: StepRun, positions: set[int]) -> None:
        """Commit the step of those of the tensors that have completed it, because an optimizer has
        applied their results. Then nothing that happens to the step's other tensors undoes it."""
        with self.lock:
            for position in positions & run.completed:
                if self._staged_by.get(position) is run:
                    del self._staged_by[position]
                    self.stats.committed.append(self._states[position].commit())

    def give_up(self, position: int) -> bool:
        """Mark a tensor's last step to be rolled back when the next step begins. Return False if
        the last step is not completed, or if it is already committed or rolled back."""
        with self.lock:
            run = self._staged_by.get(position)
            if run is None or position not in run.completed:
                return False
            run.completed.discard(position)
            return True

    def _uncommitted(self) -> list[Sent]:
        """Return, for the counters, the last steps of the tensors that are to be committed."""
        found = []
        for position, run in self._staged_by.items():
            state = self._states[position]
            if state.counted is not None and run.keeps(position):
                found.append(state.counted)
        return found

    def _settle(self, position: int) -> None:
        run = self._staged_by.pop(position, None)
        if run is None:
            return
        # If another tensor of the step has failed, a completed tensor is rolled back too.
        if run.keeps(position):
            self.stats.committed.append(self._states[position].commit())
        else:
            self._states[position].roll_back()

    def state_of(self, position: int) -> TensorState:
        """Commit or roll back a tensor's last step, and return its state. The state is created if
        the tensor has none."""
        with self.lock:
            self._settle(position)
            state = self._states.get(position)
            if state is None:
                spec = self._specs[position]
                zeros = None if self.devices is None else self.devices.zeros_of(position)
                state = TensorState(spec, self._configuration, self._part_of(spec), zeros)
                self._states[position] = state
            return state

    def _part_of(self, spec: TensorSpec) -> slice | None:
        if self.placement is None or not self._configuration.is_sparse(spec.shape, spec.numel):
            return None
        return self.placement.part(self.placement.rank, spec.numel)

    def kept_of(self, spec: TensorSpec) -> int:
        part = self._part_of(spec)
        return spec.numel if part is None else part.stop - part.start

    def settle_all(self, but: Collection[int] = ()) -> dict[int, TensorState]:
        """Close the current step, commit or roll back the last step of all tensors except ``but``,
        and return the states of the tensors that had a step."""
        with self.lock:
            self._run.is_closed = True
            for position in [i for i in self._staged_by if i not in but]:
                self._settle(position)
            return dict(self._states)

    def reset(self) -> None:
        """Drop all states; the counters stay."""
        with self.lock:
            self.settle_all()
            self._run = StepRun(is_closed=True)  # the last one refers to the old states
            self._states.clear()

    def is_current(self, position: int, run: StepRun) -> bool:
        return self._staged_by.get(position) is run

    def staged(self, position: int) -> TensorState:
        return self._states[position]

    def most_steps(self) -> int:
        with self.lock:
            found = 0
            for position, state in self._states.items():
                run = self._staged_by.get(position)
                found = max(found, state.steps + (run is not None and run.keeps(position)))
            return found

    def peek(self, position: int, *, is_open: bool) -> TensorState | None:
        """Return a tensor's state after its last complete step; None before its first step. A step
        is complete when all its tensors have results. With ``is_open``, the newest step is not
        counted, because it may still be rolled back."""
        with self.lock:
            run = self._staged_by.get(position)
            if not is_open and (run is None or run.entered <= run.completed):
                self._settle(position)
            return self._states.get(position)

    def steps_of(self, positions: Iterable[int]) -> int:
        most, states = 0, self._states
        for position in positions:
            steps = states[position].steps
            if steps > most:
                most = steps
        return most
