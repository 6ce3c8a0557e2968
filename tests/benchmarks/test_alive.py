"""Memory of the benchmark's sides is what lives at once, also where another thread lets go of it."""

import queue
import threading

import torch

from benchmarks.beside_torch.alive import MIB, most_alive, peak_mib
from benchmarks.beside_torch.workload import Workload
from distributed import Rank


def test_an_unheard_free_came_by_the_end_of_the_step_or_by_the_next_use_of_the_address():
    assert most_alive([(1, 10, 5), (2, 20, 7), (3, 10, -5), (4, 20, -7)], [9]) == [12]
    # What each step makes is never heard of again.
    assert most_alive([(1, 10, 5), (11, 20, 6)], [9, 19]) == [5, 6]
    assert most_alive([(1, 10, 5), (2, 10, 6), (3, 10, -6)], [9]) == [6]
    # With collectives that begin at 2, 3, 4 and 5, it was gone by the third after it.
    assert most_alive([(1, 10, 5), (5, 20, 6), (6, 20, -6)], [9], [2, 3, 4, 5]) == [6]
    assert most_alive([(1, 10, 5), (3, 20, 6), (6, 20, -6)], [9], [2, 3, 4, 5]) == [11]
    # What is heard of may live as long as it likes.
    assert most_alive([(1, 10, 5), (11, 20, 6), (21, 10, -5)], [9, 19]) == [5, 11]


def test_what_a_thread_frees_does_not_pile_up_over_the_steps():
    inbox: queue.Queue = queue.Queue()

    def let_go() -> None:
        while (tensor := inbox.get()) is not None:
            del tensor
            inbox.task_done()
        inbox.task_done()

    def builder(rank: Rank, work: Workload):
        def step(number: int) -> float:
            # Other sizes, so that no address is given out again; the least of the later steps counts.
            inbox.put(torch.empty((4 + number) * MIB, dtype=torch.uint8))
            inbox.join()
            return 0.0

        return step

    thread = threading.Thread(target=let_go)
    thread.start()
    found = peak_mib(Rank(), builder, Workload())
    inbox.put(None)
    thread.join()
    assert 5.0 <= found < 5.5
