//! Two guests with rxe and, between them, our boxes: unmodified kernels that know nothing of Longhaul.

use super::{MTU, PROGRAMS};
use crate::guest::{Guest, GuestConfig, Netdev, Tap};
use crate::pair::both;
use crate::{Finished, Program, RuntimeDir, longhaul};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
/// By guest: requester and responder.
const ADDRESSES: [&str; 2] = ["192.168.178.1", "192.168.178.2"];

/// Two guests, each at the end of a cable of its own.
pub struct RxeHosts {
    guests: [Guest; 2],
    taps: [Tap; 2],
    runtime: RuntimeDir,
}

/// What lies between the two.
#[derive(Clone, Copy, Debug)]
pub struct Between {
    /// Length of the fibre.
    pub km: u32,
    /// An accelerator at the first guest.
    pub near: bool,
    /// An accelerator at the second guest.
    pub far: bool,
    /// Fraction of frames that the fibre loses.
    pub loss: f64,
}

impl Between {
    /// A fibre with accelerators at both ends.
    pub fn accelerated(km: u32) -> Self {
        Between { km, near: true, far: true, loss: 0.0 }
    }

    /// A fibre alone.
    pub fn plain(km: u32) -> Self {
        Between { km, near: false, far: false, loss: 0.0 }
    }
}

/// Running boxes; they end when this is dropped.
pub struct Boxes {
    programs: Vec<Program>,
    _sockets: RuntimeDir,
}

impl RxeHosts {
    /// Boots both, with what `extend` adds to what they consist of. `name` tells their TAPs from others, in at most 3
    /// letters.
    ///
    /// # Errors
    /// When this machine has no TAP devices or there is no kernel to be had: skip, loudly.
    ///
    /// # Panics
    /// When a program is missing or a guest does not boot.
    pub fn boot(name: &str, extend: impl Fn(GuestConfig) -> GuestConfig) -> Result<Self, String> {
        let cable = |end: &str| Tap::without_address(&format!("{name}{end}"), MTU);
        let taps = [cable("a")?, cable("b")?];
        let boot = |at: usize| {
            let mut config = GuestConfig::new(["first", "second"][at]).rxe().programs(&PROGRAMS);
            config = extend(config);
            config.netdevs.push(Netdev::tap(&taps[at], &format!("52:54:00:00:01:0{at}"), MTU));
            let guest = Guest::boot(&config).map_err(|reason| reason.to_string())?;
            let setup = format!(
                "set -e
                ip link set lo up
                ip link set eth0 up
                ip address add {}/24 dev eth0
                rdma link add rxe0 type rxe netdev eth0",
                ADDRESSES[at]
            );
            guest.succeed(&setup, LIMIT);
            Ok::<_, String>(guest)
        };
        let guests = [boot(0)?, boot(1)?];
        Ok(RxeHosts { guests, taps, runtime: RuntimeDir::new() })
    }

    /// The guests: that of the clients, and that of the servers.
    pub fn guests(&self) -> &[Guest; 2] {
        &self.guests
    }

    /// The address of guest 0 or 1.
    pub fn address(&self, guest: usize) -> &'static str {
        ADDRESSES[guest]
    }

    /// Starts the boxes between the two; with `captures`, a directory, accelerators record both of their ports there.
    ///
    /// # Panics
    /// When a box does not start.
    pub fn join(&self, between: Between, captures: Option<&Path>) -> Boxes {
        let sockets = RuntimeDir::new();
        let memif = |name: &str, role: &str| format!("memif:{},{role}", sockets.path().join(name).display());
        let [near_lan, far_lan] = [0, 1].map(|at| self.taps[at].name().to_owned());
        let recorded = |end: &str| {
            let file =
                |port: &str| captures.map(|dir| dir.join(format!("{end}-{port}.pcap")).display().to_string());
            match (file("lan"), file("wan")) {
                (Some(lan), Some(wan)) => format!(" --pcap-lan {lan} --pcap-wan {wan} --pcap-frames 0"),
                _ => String::new(),
            }
        };
        let mut lines = Vec::new();
        let mut ends = [near_lan, far_lan];
        for (end, wanted, name) in [(0, between.near, "near"), (1, between.far, "far")] {
            if wanted {
                let lan = std::mem::replace(&mut ends[end], memif(name, "slave"));
                lines.push(format!(
                    "accelerate --name {name} --lan {lan} --wan {} --rate 1G --distance {}km{}",
                    memif(name, "master"),
                    between.km,
                    recorded(name)
                ));
            }
        }
        let [a, b] = &ends;
        lines.push(format!(
            "emulate --name fibre --a {a} --b {b} --distance {}km --rate 1G --loss {}",
            between.km, between.loss
        ));
        let mut boxes = Boxes { programs: Vec::new(), _sockets: sockets };
        for line in lines {
            let mut command = Command::new(longhaul());
            command.args(line.split_whitespace()).arg("--keep-privileges");
            command.env("XDG_RUNTIME_DIR", self.runtime.path()).env_remove("LD_PRELOAD");
            boxes.programs.push(Program::start(&mut command));
        }
        self.wait_until_joined();
        boxes
    }

    /// Until the guests reach each other.
    fn wait_until_joined(&self) {
        let [first, _] = &self.guests;
        let ping = format!("until ping -c 1 -W 1 {} >/dev/null; do :; done", ADDRESSES[1]);
        first.succeed(&ping, LIMIT);
    }

    /// Runs `server` in the second guest and `client` in the first; `{peer}` in the client's line is the server's address.
    ///
    /// # Errors
    /// What both printed, when one fails or hangs.
    ///
    /// # Panics
    /// When a guest has gone.
    pub fn run(&self, server: &str, client: &str, limit: Duration) -> Result<(Finished, Finished), String> {
        let [first, second] = &self.guests;
        let job = second.spawn(server, limit);
        if !second.run(super::SOMEBODY_LISTENS, LIMIT).status.success() {
            return Err(format!("nobody listens\n{}", job.finish_now()));
        }
        let client = first.run(&client.replace("{peer}", ADDRESSES[1]), limit);
        let server = if client.status.success() { job.finish() } else { job.finish_now() };
        both(Ok(server), Ok(client))
    }

    /// Runs a program of perftest.
    ///
    /// # Errors
    /// What both printed, when one fails or hangs.
    ///
    /// # Panics
    /// When a guest has gone.
    pub fn perftest(&self, line: &str, limit: Duration) -> Result<Finished, String> {
        let line = format!("{line} -F -d rxe0 -x 1");
        self.run(&line, &format!("{line} {{peer}}"), limit).map(|(_, client)| client)
    }
}

impl Boxes {
    /// Ends them as an operator does; what each printed at its end.
    ///
    /// # Panics
    /// When one does not end, or fails.
    pub fn stop(mut self) -> Vec<Finished> {
        self.programs
            .drain(..)
            .map(|program| {
                // SAFETY: kill has no preconditions; the child was not waited for, so its number is its own.
                unsafe { libc::kill(program.id() as libc::pid_t, libc::SIGTERM) };
                program.succeed(LIMIT)
            })
            .collect()
    }
}

/// The four recordings that [`RxeHosts::join`] makes in `captures`, from the requester to the responder.
pub fn segments(captures: &Path) -> [PathBuf; 4] {
    ["near-lan", "near-wan", "far-wan", "far-lan"].map(|name| captures.join(format!("{name}.pcap")))
}
