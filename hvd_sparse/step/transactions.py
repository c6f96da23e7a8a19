"""Transactions: the current step of every tensor, and whether its outcome is kept.

A step's versions become the state only when the tensor's next step begins; until then ``fail``
rolls back all tensors of the step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from hvd_sparse.collectives.topology import Placement
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.step.devices.contract import Devices
from hvd_sparse.step.records import StepRun
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import TensorSpec


class Transactions:
    """The states of all tensors, and the steps that wrote their newest versions.

    Safe to call from many threads.
    """

    def __init__(self, configuration: Configuration, specs: Sequence[TensorSpec]) -> None:
        self._configuration = configuration
        self._specs = specs
        self._states: dict[int, TensorState] = {}
        self._staged_by: dict[int, StepRun] = {}
        self._run = StepRun(is_closed=True)
        self.placement: Placement | None = None
        self.devices: Devices | None = None
        self.lock = threading.RLock()
        self.on_begin: Callable[[StepRun], None] | None = None
        """Called, under the lock, with every new step."""

    def open_run(self, position: int | None) -> StepRun:
        """Return the step that a tensor is about to enter: a new step if the last is closed or
        already contains the tensor."""
        with self.lock:
            run = self._run
            if run.is_closed or position in run.entered:
                self._run = run = StepRun()
                if self.on_begin is not None:
                    self.on_begin(run)
            return run

    def enter(self, position: int) -> tuple[StepRun, TensorState]:
        """Return the step that a tensor enters, and its state: its last step is settled, this one
        staged.  Called under the lock."""
        # Inlined ``open_run`` and ``_settle``, because every tensor calls this in every step.
        run = self._run
        if run.is_closed or position in run.entered:
            run = self.open_run(position)
        last, state = self._staged_by.get(position), self._states.get(position)
        if state is None or last is None or last.failure is not None or not last.is_finite:
            state = self.state_of(position)
        elif position in last.completed:
            state.commit()
        else:
            state.roll_back()
        self._staged_by[position] = run
        run.entered.add(position)
        return run, state

    def state_of(self, position: int) -> TensorState:
        """Return the settled state of a tensor, made if it had no step yet."""
        with self.lock:
            self._settle(position)
            state = self._states.get(position)
            if state is None:
                spec = self._specs[position]
                zeros = None if self.devices is None else self.devices.zeros_of(position)
                state = TensorState(spec, self._configuration, self._part_of(spec), zeros)
                self._states[position] = state
            return state

    def close(self) -> None:
        """Close the step; InvalidOption if some of its tensors are not completed."""
        with self.lock:
            waiting = self._run.entered - self._run.completed
            if waiting and not self._run.is_closed:
                names = ", ".join(repr(self._specs[position].key) for position in sorted(waiting))
                raise InvalidOption(
                    f"a step is under way, and {names} has not come back: change groups between "
                    "steps"
                )
            self._run.is_closed = True

    def leave(self) -> None:
        """Close the step, even if some of its tensors are not completed."""
        with self.lock:
            self._run.is_closed = True

    def _part_of(self, spec: TensorSpec) -> slice | None:
        """Return this rank's part of a tensor, if the ranks of a node divide it."""
        if self.placement is None or not self._configuration.is_sparse(spec.shape, spec.numel):
            return None
        return self.placement.part(self.placement.rank, spec.numel)

    def kept_of(self, spec: TensorSpec) -> int:
        """Return the number of entries whose residual this rank keeps."""
        part = self._part_of(spec)
        return spec.numel if part is None else part.stop - part.start

    def _settle(self, position: int) -> None:
        run = self._staged_by.pop(position, None)
        if run is None:
            return
        # A completed tensor is rolled back too if a later tensor fails.
        if position in run.completed and run.failure is None and run.is_finite:
            self._states[position].commit()
        else:
            self._states[position].roll_back()

    def fail(self, run: StepRun, failure: Exception) -> None:
        """Roll back all tensors of a step."""
        with self.lock:
            run.is_closed = True
            run.failure = run.failure or failure
            # Tensors that have begun another step since then are not affected.
            for position in run.entered:
                if self._staged_by.get(position) is run:
                    self._settle(position)

    def give_up(self, position: int) -> StepRun | None:
        """Let a tensor's last step count for nothing: it is taken back when the next one begins.

        Return that step; None where there is none, or it is settled already.
        """
        with self.lock:
            run = self._staged_by.get(position)
            if run is None or position not in run.completed:
                return None
            run.completed.discard(position)
            return run

    def settle_all(self) -> dict[int, TensorState]:
        """Return the states of all tensors that had a step, the last good step included."""
        with self.lock:
            self._run.is_closed = True
            for position in list(self._staged_by):
                self._settle(position)
            return dict(self._states)

    def reset(self) -> None:
        """Forget all states, as before the first step."""
        with self.lock:
            self._run.is_closed = True
            self._staged_by.clear()
            self._states.clear()

    def is_current(self, position: int, run: StepRun) -> bool:
        """Return whether this is still the tensor's latest step."""
        return self._staged_by.get(position) is run

    def staged(self, position: int) -> TensorState:
        """Return the uncommitted state of a tensor whose step is in progress; no copy."""
        return self._states[position]

    def most_steps(self) -> int:
        """Return the completed steps of the tensor that has most, settled or not."""
        with self.lock:
            found = 0
            for position, state in self._states.items():
                run = self._staged_by.get(position)
                is_good = run is not None and run.failure is None and run.is_finite
                is_done = run is not None and is_good and position in run.completed
                found = max(found, state.steps + is_done)
            return found

    def peek(self, position: int, *, is_open: bool) -> TensorState | None:
        """Return the settled state of a tensor; of one that is in a step, what the step began from.

        None where it had no step yet.

        is_open : the step's outcome is not known yet, even if all of it is completed
        """
        with self.lock:
            run = self._staged_by.get(position)
            if not is_open and (run is None or run.entered <= run.completed):
                self._settle(position)
            return self._states.get(position)

    def steps_of(self, positions: Iterable[int]) -> int:
        """Return the most completed and settled steps of tensors that are in a step."""
        most, states = 0, self._states
        for position in positions:
            steps = states[position].steps
            if steps > most:
                most = steps
        return most
