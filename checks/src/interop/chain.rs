//! Two guests with rxe and our boxes between them: unmodified kernels, unaware of Longhaul.

use super::{MTU, PROGRAMS};
use crate::guest::{Guest, GuestConfig, Job, Netdev, Tap};
use crate::pair::both;
use crate::{Finished, Program, RuntimeDir};
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
/// Attempts to run a perftest program whose server is not listening yet.
const CONNECT_ATTEMPTS: u32 = 5;
/// perftest's message for a REJ with an unknown service ID (IBTA 12.6.7.2, reason 8).
const NOBODY_LISTENS_YET: &str = "RDMA_CM_EVENT_REJECTED; error: 8";
/// By guest: requester and responder.
const ADDRESSES: [&str; 2] = ["192.168.178.1", "192.168.178.2"];

const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Two guests, each at the end of its own cable.
pub struct RxeHosts {
    guests: [Guest; 2],
    configs: [GuestConfig; 2],
    taps: [Tap; 2],
    runtime: Arc<RuntimeDir>,
}

/// What a box does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum BoxKind {
    /// Acknowledges.
    Accelerator,
    /// Acknowledges, and has a transport to the other one.
    Whole,
    /// A whole box that fetches the data of writes.
    ReadAhead,
}

impl BoxKind {
    /// Name for reports.
    pub fn name(self) -> &'static str {
        match self {
            BoxKind::Accelerator => "accelerators",
            BoxKind::Whole => "whole boxes",
            BoxKind::ReadAhead => "read-ahead",
        }
    }

    fn options(self) -> &'static str {
        match self {
            BoxKind::Accelerator => "",
            BoxKind::Whole => " --transport",
            BoxKind::ReadAhead => " --transport --read-ahead nvme,rpc",
        }
    }
}

/// The path between the two.
#[derive(Clone, Copy, Debug)]
pub struct Between {
    /// Length of the fibre.
    pub km: u32,
    /// Its rate, in Mbit/s.
    pub mbits: u32,
    /// A box at the first guest's end.
    pub near: bool,
    /// A box at the second guest's end.
    pub far: bool,
    /// What they do.
    pub kind: BoxKind,
    /// Fraction of frames that the fibre loses.
    pub loss: f64,
    /// Silence of a responder after which accelerators give up its flows, in seconds.
    pub give_up_s: u32,
}

impl Between {
    /// A fibre with accelerators at both ends.
    pub fn accelerated(km: u32) -> Self {
        Between { near: true, far: true, ..Self::plain(km) }
    }

    /// A fibre with boxes at both ends.
    pub fn boxes(km: u32, kind: BoxKind) -> Self {
        Between { kind, ..Self::accelerated(km) }
    }

    /// A fibre alone, of 1 Gbit/s.
    pub fn plain(km: u32) -> Self {
        let kind = BoxKind::Accelerator;
        Between { km, mbits: 1000, near: false, far: false, kind, loss: 0.0, give_up_s: 20 }
    }
}

/// Recorders of the four segments.
#[derive(Clone, Copy, Debug)]
pub enum Recorded<'a> {
    /// None.
    Not,
    /// The accelerators record into this directory; at an end without one, the fibre does.
    ByAccelerators(&'a Path),
    /// The fibre and a separate box in front of each accelerator record into this directory, so
    /// that recordings continue when an accelerator ends.
    Apart(&'a Path),
}

/// Running boxes; they end when dropped.
pub struct Boxes {
    running: Vec<RunningBox>,
    runtime: Arc<RuntimeDir>,
    _sockets: RuntimeDir,
}

struct RunningBox {
    name: String,
    line: String,
    program: Program,
}

impl RxeHosts {
    /// Boots both guests, with the configuration changed by `extend`. `name`, of at most 3 letters,
    /// distinguishes their TAPs.
    ///
    /// # Errors
    /// If this machine has no TAP devices or no kernel image is available; skip loudly then.
    ///
    /// # Panics
    /// If a program is missing or a guest does not boot.
    pub fn boot(name: &str, extend: impl Fn(GuestConfig) -> GuestConfig) -> Result<Self, String> {
        let cable = |end: &str| Tap::without_address(&format!("{name}{end}"), MTU);
        let taps = [cable("a")?, cable("b")?];
        let configs = [0, 1].map(|at| {
            let mut config = GuestConfig::new(["first", "second"][at]).rxe().programs(&PROGRAMS);
            config = extend(config);
            config.netdevs.push(Netdev::tap(&taps[at], &format!("52:54:00:00:01:0{at}"), MTU));
            config
        });
        let guests = [boot(&configs[0], 0)?, boot(&configs[1], 1)?];
        Ok(RxeHosts { guests, configs, taps, runtime: Arc::new(RuntimeDir::new()) })
    }

    /// Boots a guest again, killing it first if it runs.
    ///
    /// # Panics
    /// When it does not boot.
    pub fn boot_again(&mut self, guest: usize) {
        self.guests[guest].kill();
        self.guests[guest] = boot(&self.configs[guest], guest).unwrap_or_else(|e| panic!("{e}"));
    }

    /// The cable of guest 0 or 1.
    pub fn cable(&self, guest: usize) -> &Tap {
        &self.taps[guest]
    }

    /// The guests: that of the clients, and that of the servers.
    pub fn guests(&self) -> &[Guest; 2] {
        &self.guests
    }

    /// The address of guest 0 or 1.
    pub fn address(&self, guest: usize) -> &'static str {
        ADDRESSES[guest]
    }

    /// Starts the boxes between the two; with a directory `captures`, accelerators record both of
    /// their ports there.
    ///
    /// # Panics
    /// When a box does not start.
    pub fn join(&self, between: Between, captures: Option<&Path>) -> Boxes {
        self.join_recorded(between, captures.map_or(Recorded::Not, Recorded::ByAccelerators))
    }

    /// Starts the boxes between the two.
    ///
    /// # Panics
    /// When a box does not start.
    pub fn join_recorded(&self, between: Between, recorded: Recorded<'_>) -> Boxes {
        let sockets = RuntimeDir::new();
        let taps = self.taps.each_ref().map(Tap::name);
        let mut boxes =
            Boxes { running: Vec::new(), runtime: Arc::clone(&self.runtime), _sockets: sockets };
        for (name, line) in lines(between, recorded, taps, &boxes._sockets) {
            boxes.start(name, line);
        }
        self.wait_until_joined();
        boxes
    }

    /// Waits until the guests can reach each other.
    ///
    /// # Panics
    /// If they cannot.
    pub fn wait_until_joined(&self) {
        let [first, _] = &self.guests;
        let ping = format!("until ping -c 1 -W 5 {} >/dev/null; do :; done", ADDRESSES[1]);
        first.succeed(&ping, LIMIT);
    }

    /// Runs `server` in the second guest and `client` in the first; `{peer}` in the client's line
    /// stands for the server's address.
    ///
    /// # Errors
    /// The output of both, if one fails or hangs.
    ///
    /// # Panics
    /// If a guest has exited.
    pub fn run(
        &self,
        server: &str,
        client: &str,
        limit: Duration,
    ) -> Result<(Finished, Finished), String> {
        let [first, second] = &self.guests;
        let job = second.spawn(server, limit);
        if !second.run(super::SOMEBODY_LISTENS, LIMIT).status.success() {
            return Err(format!("nobody listens\n{}", job.finish_now()));
        }
        let client = first.run(&client.replace("{peer}", ADDRESSES[1]), limit);
        let server = if client.status.success() { job.finish() } else { job.finish_now() };
        both(Ok(server), Ok(client))
    }

    /// Starts a perftest program at both ends without waiting for it. Returns the client's job and
    /// the server's.
    ///
    /// # Panics
    /// If the server does not listen, or a guest has exited.
    pub fn begin(&self, line: &str, limit: Duration) -> [Job<'_>; 2] {
        let line = format!("{line} -F -d rxe0 -x 1");
        let [first, second] = &self.guests;
        let server = second.spawn(&line, limit);
        if !second.run(super::SOMEBODY_LISTENS, LIMIT).status.success() {
            panic!("nobody listens\n{}", server.finish_now());
        }
        [first.spawn(&format!("{line} {}", ADDRESSES[1]), limit), server]
    }

    /// Runs a perftest program, and repeats it if the second RDMA-CM connection came before the
    /// server's second `rdma_listen`.
    ///
    /// # Errors
    /// The output of both, if one fails or hangs.
    ///
    /// # Panics
    /// If a guest has exited.
    pub fn perftest(&self, line: &str, limit: Duration) -> Result<Finished, String> {
        let line = format!("{line} -F -d rxe0 -x 1");
        let client = format!("{line} {{peer}}");
        let mut outcome = self.run(&line, &client, limit);
        for _ in 1..CONNECT_ATTEMPTS {
            if !outcome.as_ref().is_err_and(|text| text.contains(NOBODY_LISTENS_YET)) {
                break;
            }
            outcome = self.run(&line, &client, limit);
        }
        outcome.map(|(_, client)| client)
    }
}

/// Boots the guest at one end and configures its address.
fn boot(config: &GuestConfig, at: usize) -> Result<Guest, String> {
    let guest = Guest::boot(config).map_err(|reason| reason.to_string())?;
    let setup = format!(
        "set -e
        ip link set lo up
        ip link set eth0 up
        ip address add {}/24 dev eth0
        rdma link add rxe0 type rxe netdev eth0",
        ADDRESSES[at]
    );
    guest.succeed(&setup, LIMIT);
    Ok(guest)
}

/// Names and command lines of the boxes, in starting order.
fn lines(
    between: Between,
    recorded: Recorded<'_>,
    taps: [&str; 2],
    sockets: &RuntimeDir,
) -> Vec<(&'static str, String)> {
    let Between { km, mbits, near, far, kind, loss, give_up_s } = between;
    let memif =
        |name: &str, role: &str| format!("memif:{},{role}", sockets.path().join(name).display());
    let file = |dir: &Path, name: &str| dir.join(format!("{name}.pcap")).display().to_string();
    let mut lines = Vec::new();
    let mut ends = taps.map(str::to_owned);
    for (end, wanted, name, recorder) in [(0, near, "near", "near-lan"), (1, far, "far", "far-lan")]
    {
        if let Recorded::Apart(dir) = recorded {
            let tap = std::mem::replace(&mut ends[end], memif(recorder, "slave"));
            lines.push((
                recorder,
                format!(
                    "emulate --a {tap} --b {} --rate 100G --pcap-a {} --pcap-frames 0",
                    memif(recorder, "master"),
                    file(dir, recorder)
                ),
            ));
        }
        if wanted {
            let lan = std::mem::replace(&mut ends[end], memif(name, "slave"));
            let record = match recorded {
                Recorded::ByAccelerators(dir) => format!(
                    " --pcap-lan {} --pcap-wan {} --pcap-frames 0",
                    file(dir, &format!("{name}-lan")),
                    file(dir, &format!("{name}-wan"))
                ),
                Recorded::Not | Recorded::Apart(_) => String::new(),
            };
            let wan = memif(name, "master");
            let line =
                format!("accelerate --lan {lan} --wan {wan} --rate {mbits}M --distance {km}km");
            let options = kind.options();
            lines.push((name, format!("{line}{options} --give-up {give_up_s}s{record}")));
        }
    }
    let [a, b] = ends;
    let record = match recorded {
        Recorded::Apart(dir) => {
            let [near, far] = ["near-wan", "far-wan"].map(|name| file(dir, name));
            format!(" --pcap-a {near} --pcap-b {far} --pcap-frames 0")
        }
        Recorded::ByAccelerators(dir) => {
            let [near, far] =
                [(near, 'a', "near-wan"), (far, 'b', "far-wan")].map(|(taken, port, name)| {
                    if taken {
                        String::new()
                    } else {
                        format!(" --pcap-{port} {}", file(dir, name))
                    }
                });
            format!("{near}{far} --pcap-frames 0")
        }
        Recorded::Not => String::new(),
    };
    let line =
        format!("emulate --a {a} --b {b} --distance {km}km --rate {mbits}M --loss {loss}{record}");
    lines.push(("fibre", line));
    lines
}

impl Boxes {
    fn start(&mut self, name: &str, line: String) {
        let mut command = self.runtime.longhaul(&line);
        command.args(["--name", name, "--keep-privileges"]);
        let program = Program::start(&mut command);
        self.running.push(RunningBox { name: name.to_owned(), line, program });
    }

    /// Status of a box.
    ///
    /// # Panics
    /// If it has none for long.
    pub fn status(&self, name: &str) -> Value {
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut command = self.runtime.longhaul(&format!("box status {name} --json"));
            let done = Program::start(&mut command).finish(LIMIT);
            if done.status.success() {
                let boxes: Value =
                    serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
                return boxes[0].clone();
            }
            assert!(Instant::now() < deadline, "{done}");
            sleep(LOOK_AGAIN);
        }
    }

    /// Waits until the status of box `name` satisfies a condition, and returns it.
    ///
    /// # Panics
    /// If it does not within `limit`, with `what`.
    pub fn wait_for(
        &self,
        name: &str,
        what: &str,
        limit: Duration,
        is_so: impl Fn(&Value) -> bool,
    ) -> Value {
        let deadline = Instant::now() + limit;
        loop {
            let status = self.status(name);
            if is_so(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "{what} does not happen: {status:#}");
            sleep(LOOK_AGAIN);
        }
    }

    /// Ends the box `name` by `signal` and restarts it immediately. Returns its exit.
    ///
    /// # Panics
    /// If there is no such box, or it does not end.
    pub fn restart(&mut self, name: &str, signal: libc::c_int) -> Finished {
        let at = self.running.iter().position(|one| one.name == name).expect("a box of this name");
        let RunningBox { name, line, program } = self.running.remove(at);
        // SAFETY: kill has no preconditions; the child was not waited for, so its process id is not
        // reused.
        unsafe { libc::kill(program.id() as libc::pid_t, signal) };
        let ended = program.finish(LIMIT);
        self.start(&name, line);
        ended
    }

    /// Ends the boxes as an operator does. Returns their last output.
    ///
    /// # Panics
    /// If one does not end, or fails.
    pub fn stop(mut self) -> Vec<Finished> {
        self.running
            .drain(..)
            .map(|RunningBox { program, .. }| {
                // SAFETY: kill has no preconditions; the child was not waited for, so its process
                // id is not reused.
                unsafe { libc::kill(program.id() as libc::pid_t, libc::SIGTERM) };
                program.succeed(LIMIT)
            })
            .collect()
    }
}

/// The four recordings that [`RxeHosts::join`] makes in `captures`, from the requester to the
/// responder.
pub fn segments(captures: &Path) -> [PathBuf; 4] {
    ["near-lan", "near-wan", "far-wan", "far-lan"].map(|name| captures.join(format!("{name}.pcap")))
}
