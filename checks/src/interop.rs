//! Our device and the kernel's rxe as each other's peers: rxe runs in a guest, our programs on this machine, and a TAP
//! joins the two.

mod chain;
mod exchange;
pub mod storage;

pub use chain::{Between, Boxes, RxeHosts, segments};
pub use exchange::{End, Exchange, Family};

use crate::guest::{Guest, GuestConfig, Netdev, Tap};
use crate::pair::{both, wait_until_asleep};
use crate::{Finished, Program, RuntimeDir, longhaul};
use std::process::Command;
use std::time::Duration;

/// Netdev MTU on both sides: enough for a path MTU of 4096 with all headers.
const MTU: u16 = 4400;
const LIMIT: Duration = Duration::from_secs(30);
/// Waits in the guest for a server: by TCP (state 0A), or by RDMA-CM.
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

/// The addresses.
pub fn address(end: End, family: Family) -> &'static str {
    match (end, family) {
        (End::Ours, Family::V4) => "192.168.177.1",
        (End::Rxe, Family::V4) => "192.168.177.2",
        (End::Ours, Family::V6) => "fd77::1",
        (End::Rxe, Family::V6) => "fd77::2",
    }
}

/// A guest with rxe on its eth0, and this machine at the other end of the cable.
pub struct RxePeer {
    guest: Guest,
    tap: Tap,
    /// Where `longhaul exec` keeps what it writes.
    runtime: RuntimeDir,
}

impl RxePeer {
    /// Boots the guest. `name` tells its TAP from others, in at most 4 letters.
    ///
    /// # Errors
    /// When this machine has no TAP devices or there is no kernel to be had: skip, loudly.
    ///
    /// # Panics
    /// When a program is missing or the guest does not boot.
    pub fn boot(name: &str) -> Result<Self, String> {
        let tap = Tap::new(name, &format!("{}/24", address(End::Ours, Family::V4)), MTU)?;
        tap.add_address(&format!("{}/64", address(End::Ours, Family::V6)))?;
        let mut config = GuestConfig::new("rxe").rxe().modules(&["sch_netem"]).programs(&PROGRAMS);
        config.netdevs.push(Netdev::tap(&tap, "52:54:00:00:00:02", MTU));
        let guest = Guest::boot(&config).map_err(|reason| reason.to_string())?;
        let (v4, v6) = (address(End::Rxe, Family::V4), address(End::Rxe, Family::V6));
        let setup = format!(
            "set -e
            ip link set lo up
            ip link set eth0 up
            ip address add {v4}/24 dev eth0
            ip address add {v6}/64 dev eth0 nodad
            rdma link add rxe0 type rxe netdev eth0"
        );
        guest.succeed(&setup, LIMIT);
        Ok(RxePeer { guest, tap, runtime: RuntimeDir::new() })
    }

    /// The guest that rxe runs in.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// What this machine calls the cable.
    pub fn tap(&self) -> &Tap {
        &self.tap
    }

    /// Runs the server of `exchange` at `server` and its client at the other end.
    ///
    /// # Errors
    /// What both printed, when one fails or hangs.
    ///
    /// # Panics
    /// When the guest has gone.
    pub fn run(
        &self,
        exchange: &Exchange,
        server: End,
        family: Family,
        limit: Duration,
    ) -> Result<(Finished, Finished), String> {
        let waits = self.line(&exchange.server, server, family);
        let begins = self.line(&exchange.client, server.other(), family);
        match server {
            End::Ours => {
                let server = Program::start(&mut self.ours(&waits, family));
                wait_until_asleep(server.id());
                let client = self.guest.run(&begins, limit);
                let patience = if client.status.success() { LIMIT } else { Duration::ZERO };
                both(server.end_within(patience), Ok(client))
            }
            End::Rxe => {
                let job = self.guest.spawn(&waits, limit);
                if !self.guest.run(SOMEBODY_LISTENS, LIMIT).status.success() {
                    return Err(format!("nobody listens\n{}", job.finish_now()));
                }
                let client = Program::start(&mut self.ours(&begins, family)).end_within(limit);
                let is_done = matches!(&client, Ok(client) if client.status.success());
                let server = if is_done { job.finish() } else { job.finish_now() };
                both(Ok(server), client)
            }
        }
    }

    /// `template` for an end.
    fn line(&self, template: &str, end: End, family: Family) -> String {
        // rxe's first GID is the link-local one, and then they follow in the order in which addresses were added.
        let (device, gid) = match (end, family) {
            (End::Ours, _) => ("longhaul0", "0"),
            (End::Rxe, Family::V4) => ("rxe0", "1"),
            (End::Rxe, Family::V6) => ("rxe0", "2"),
        };
        template
            .replace("{device}", device)
            .replace("{gid}", gid)
            .replace("{own}", address(end, family))
            .replace("{peer}", address(end.other(), family))
            .replace("{host}", address(end.other(), Family::V4))
    }

    /// `line` on our device, over a UDP socket.
    fn ours(&self, line: &str, family: Family) -> Command {
        let mut command = Command::new(longhaul());
        command.arg("exec").arg(format!("--udp={}", address(End::Ours, family))).arg("--");
        command.args(line.split_whitespace()).env("XDG_RUNTIME_DIR", self.runtime.path());
        command
    }
}
