//! Our device and the kernel's rxe as peers: rxe runs in a guest, our programs on this machine, and
//! a segment connects them. Also two such guests with our boxes between them.

mod chain;
mod exchange;
mod peer;
mod segment;
pub mod storage;

pub use chain::{Between, BoxKind, Boxes, Recorded, RxeHosts, segments};
pub use exchange::{End, Exchange, Family};
pub use peer::{Netem, RxePeer};
pub use segment::{Fibre, Port};

use std::time::Duration;

/// Netdev MTU on both sides: enough for a path MTU of 4096 with all headers.
const MTU: u16 = 4400;
const LIMIT: Duration = Duration::from_secs(120);
/// Waits in the guest for a server, by TCP (state 0A) or by RDMA-CM.
const SOMEBODY_LISTENS: &str = "until grep -qh ' 0A ' /proc/net/tcp /proc/net/tcp6 ||
    rdma resource show cm_id | grep -q LISTEN; do sleep 0.05; done";
/// Both ends' programs.
const PROGRAMS: [(&str, &str); 13] = [
    ("ib_write_bw", "perftest"),
    ("ib_write_lat", "perftest"),
    ("ib_read_bw", "perftest"),
    ("ib_read_lat", "perftest"),
    ("ib_send_bw", "perftest"),
    ("ib_send_lat", "perftest"),
    ("ib_atomic_bw", "perftest"),
    ("ib_atomic_lat", "perftest"),
    ("rping", "rdmacm-utils"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
    ("ibv_uc_pingpong", "ibverbs-utils"),
    ("ibv_ud_pingpong", "ibverbs-utils"),
    ("ibv_srq_pingpong", "ibverbs-utils"),
];
