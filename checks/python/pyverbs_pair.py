"""Two processes that move data through pyverbs: SEND, WRITE, READ over RC, and UD with an address handle.

usage: pyverbs_pair.py PORT [SERVER]

Without SERVER it listens on TCP PORT for the other's addresses.
"""

import json
import socket
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ, CqInitAttrEx, CQEX, PollCqAttr
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.wr import RecvWR, SendWR, SGE

SIZE = 5000
QKEY = 0x1111_1111
GRH = 40
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ


class Peer:
    """The other process: every message is one line of JSON."""

    def __init__(self, port, server):
        if server is None:
            listener = socket.create_server(("127.0.0.1", port))
            self.connection, _ = listener.accept()
        else:
            self.connection = socket.create_connection((server, port))
        self.lines = self.connection.makefile("r")

    def exchange(self, value):
        self.connection.sendall(json.dumps(value).encode() + b"\n")
        return json.loads(self.lines.readline())


def take(cq):
    """One completion, which must be good."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        count, completions = cq.poll(1)
        if count:
            assert completions[0].status == e.IBV_WC_SUCCESS, completions[0]
            return completions[0]
    raise TimeoutError("no completion")


def take_extended(cq):
    """One completion of an extended CQ: its opcode."""
    deadline = time.monotonic() + 10
    while cq.start_poll(PollCqAttr()) == 2:
        assert time.monotonic() < deadline, "no completion"
    assert cq.status == e.IBV_WC_SUCCESS, cq.status
    opcode = cq.read_opcode()
    cq.end_poll()
    return opcode


def to(gid):
    return AHAttr(gr=GlobalRoute(dgid=GID(gid), sgid_index=1, hop_limit=64), is_global=1, port_num=1)


def connect(qp, me, other):
    attr = QPAttr(port_num=1)
    attr.dest_qp_num, attr.path_mtu = other["qpn"], e.IBV_MTU_1024
    attr.rq_psn, attr.sq_psn = other["psn"], me["psn"]
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
    attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 18, 7, 7
    attr.qp_access_flags = ACCESS
    attr.ah_attr = to(other["gid"])
    qp.to_rts(attr)


def reliable(context, peer, sends):
    pd = PD(context)
    cq = CQEX(context, CqInitAttrEx(cqe=16, wc_flags=e.IBV_WC_STANDARD_FLAGS))
    mr = MR(pd, SIZE, ACCESS)
    flags = e.IBV_QP_EX_WITH_SEND | e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_RDMA_READ
    init = QPInitAttrEx(
        qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=8, max_recv_wr=8), pd=pd, sq_sig_all=1,
        send_ops_flags=flags, comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
    reachable = QPAttr(port_num=1)
    reachable.qp_access_flags = ACCESS
    qp = QPEx(context, init, reachable)
    me = {"qpn": qp.qp_num, "psn": 0x123456, "gid": str(context.query_gid(1, 1)), "va": mr.buf, "rkey": mr.rkey}
    other = peer.exchange(me)
    connect(qp, me, other)
    qp.post_recv(RecvWR(sg=[SGE(mr.buf, SIZE, mr.lkey)], num_sge=1))
    peer.exchange("connected")

    def post(build):
        qp.wr_start()
        qp.wr_id, qp.wr_flags = 7, e.IBV_SEND_SIGNALED
        build()
        qp.wr_set_sge(SGE(mr.buf, SIZE, mr.lkey))
        qp.wr_complete()

    if sends:
        mr.write("s" * SIZE, SIZE)
        post(qp.wr_send)
        assert take_extended(cq) == e.IBV_WC_SEND
    else:
        assert take_extended(cq) == e.IBV_WC_RECV
        assert mr.read(SIZE, 0) == b"s" * SIZE
    peer.exchange("sent")
    if sends:
        mr.write("w" * SIZE, SIZE)
        post(lambda: qp.wr_rdma_write(other["rkey"], other["va"]))
        assert take_extended(cq) == e.IBV_WC_RDMA_WRITE
    peer.exchange("written")
    if not sends:
        assert mr.read(SIZE, 0) == b"w" * SIZE
        mr.write("r" * SIZE, SIZE)
    peer.exchange("to be read")
    if sends:
        post(lambda: qp.wr_rdma_read(other["rkey"], other["va"]))
        assert take_extended(cq) == e.IBV_WC_RDMA_READ
        assert mr.read(SIZE, 0) == b"r" * SIZE
    peer.exchange("read")


def datagram(context, peer, sends):
    size = 500
    pd, cq = PD(context), CQ(context, 16)
    mr = MR(pd, GRH + size, e.IBV_ACCESS_LOCAL_WRITE)
    init = QPInitAttr(qp_type=e.IBV_QPT_UD, scq=cq, rcq=cq, cap=QPCap(max_send_wr=8, max_recv_wr=8))
    attr = QPAttr(port_num=1)
    attr.qkey = QKEY
    # Ready to send at once.
    qp = QP(pd, init, attr)
    other = peer.exchange({"qpn": qp.qp_num, "gid": str(context.query_gid(1, 1))})
    qp.post_recv(RecvWR(sg=[SGE(mr.buf, GRH + size, mr.lkey)], num_sge=1))
    peer.exchange("posted")
    if sends:
        mr.write("d" * (GRH + size), GRH + size)
        wr = SendWR(opcode=e.IBV_WR_SEND, num_sge=1, sg=[SGE(mr.buf, size, mr.lkey)])
        handle = AH(pd, attr=to(other["gid"]))
        wr.set_wr_ud(handle, other["qpn"], QKEY)
        qp.post_send(wr)
        take(cq)
    else:
        completion = take(cq)
        assert completion.byte_len == GRH + size, completion
        assert completion.src_qp == other["qpn"], completion
        assert mr.read(size, GRH) == b"d" * size
    peer.exchange("received")


def main():
    server = sys.argv[2] if len(sys.argv) > 2 else None
    peer = Peer(int(sys.argv[1]), server)
    context = Context(name="longhaul0")
    sends = server is not None
    reliable(context, peer, sends)
    datagram(context, peer, sends)
    print("all data arrived")


if __name__ == "__main__":
    main()
