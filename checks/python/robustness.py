"""Scenarios for a library in a program's process, one per run: robustness.py NAME.

Queue pairs are not connected: completions come from flushing.
"""

import ctypes
import errno
import os
import resource
import signal
import sys
import threading
import time

import pyverbs.enums as e
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import RecvWR, SGE

verbs = ctypes.CDLL(None, use_errno=True)


class Endpoint:
    """A queue pair whose receives can be made to complete."""

    def __init__(self):
        self.context = Context(name="longhaul0")
        self.channel = CompChannel(self.context)
        self.cq = CQ(self.context, 64, None, self.channel)
        self.pd = PD(self.context)
        self.mr = MR(self.pd, 4096, e.IBV_ACCESS_LOCAL_WRITE)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=QPCap(max_send_wr=8, max_recv_wr=8))
        self.qp = QP(self.pd, init)
        self.qp.to_init(QPAttr(port_num=1))

    def complete_a_receive(self):
        """Puts the queue pair into error: the receive is flushed."""
        self.qp.post_recv(RecvWR(sg=[SGE(self.mr.buf, 64, self.mr.lkey)], num_sge=1))
        attr = QPAttr(qp_state=e.IBV_QPS_ERR)
        self.qp.modify(attr, e.IBV_QP_STATE)

    def again(self):
        self.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        self.qp.to_init(QPAttr(port_num=1))

    def poll(self):
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            count, _ = self.cq.poll(1)
            if count:
                return
        raise TimeoutError("no completion")


def in_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print("in the child:", error, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status


def use():
    endpoint = Endpoint()
    endpoint.complete_a_receive()
    endpoint.poll()


def loaded_late():
    """A program that loads libibverbs itself and asks that library for its symbols."""
    late = ctypes.CDLL("libibverbs.so.1")
    count = ctypes.c_int()
    late.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    late.ibv_get_device_list(ctypes.byref(count))
    assert count.value == 1, count


def fork_before_opening():
    count = ctypes.c_int()
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    assert verbs.ibv_get_device_list(ctypes.byref(count)) and count.value == 1
    in_child(use)
    use()


def fork_after_opening():
    assert verbs.ibv_fork_init() == 0
    endpoint = Endpoint()
    # What it inherits is the parent's: the child only ends, or looks at what needs no device.
    in_child(lambda: None)
    in_child(lambda: Context(name="longhaul0").query_port(1))
    in_child(lambda: os.execvp("true", ["true"]))
    endpoint.complete_a_receive()
    endpoint.poll()


def threads_that_end():
    endpoint = Endpoint()
    for _ in range(50):
        pollers = [threading.Thread(target=lambda: endpoint.cq.poll(1)) for _ in range(4)]
        for poller in pollers:
            poller.start()
        for poller in pollers:
            poller.join()
    endpoint.complete_a_receive()
    endpoint.poll()


def on_alarm(restart):
    """A handler that does nothing, installed in C: Python's own would hide the interruption."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGALRM, ctypes.cast(libc.getpid, ctypes.c_void_p))
    libc.siginterrupt(signal.SIGALRM, 0 if restart else 1)


def signal_without_restart():
    on_alarm(restart=False)
    channel = raw_channel()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    result, number = wait_on(channel)
    assert (result, number) == (-1, errno.EINTR), (result, number)


def raw_channel():
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_open_device.restype = ctypes.c_void_p
    verbs.ibv_open_device.argtypes = [ctypes.c_void_p]
    verbs.ibv_create_comp_channel.restype = ctypes.c_void_p
    verbs.ibv_create_comp_channel.argtypes = [ctypes.c_void_p]
    devices = verbs.ibv_get_device_list(None)
    channel = verbs.ibv_create_comp_channel(verbs.ibv_open_device(devices[0]))
    assert channel
    return channel


def wait_on(channel):
    event_cq, event_context = ctypes.c_void_p(), ctypes.c_void_p()
    verbs.ibv_get_cq_event.argtypes = [ctypes.c_void_p] * 3
    result = verbs.ibv_get_cq_event(channel, ctypes.byref(event_cq), ctypes.byref(event_context))
    return result, ctypes.get_errno()


def signal_storm():
    """Calls that are restarted after a signal, as most programs want it, go on waiting; nothing is lost."""
    on_alarm(restart=True)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    channel = raw_channel()
    waiter = threading.Thread(target=wait_on, args=[channel], daemon=True)
    waiter.start()
    endpoint = Endpoint()
    for _ in range(200):
        endpoint.cq.req_notify(False)
        endpoint.complete_a_receive()
        endpoint.channel.get_cq_event(endpoint.cq)
        endpoint.cq.ack_events(1)
        endpoint.poll()
        endpoint.again()
    time.sleep(0.1)
    assert waiter.is_alive()
    signal.setitimer(signal.ITIMER_REAL, 0)


def closed_standard_descriptors():
    kept = os.dup(1)
    for descriptor in range(3):
        os.close(descriptor)
    use()
    # The device's own may have taken their numbers; it must not write messages into them.
    os.write(kept, b"survived\n")


def few_descriptors():
    """Whatever fails must fail with an error that the program sees."""
    used = len(os.listdir("/proc/self/fd"))
    for spare in range(1, 16):
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

        def attempt():
            try:
                use()
            except (TimeoutError, AssertionError):
                raise
            except Exception as error:
                assert "rrno" in str(error), error

        in_child(attempt)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    try:
        print("survived", flush=True)
    except (OSError, ValueError):
        pass
