//! Failures of a box between two hosts, in each topology and with each kind of port, and the time
//! until traffic flows again.
//!
//! Two boxes, `near` (west, w1) and `far` (w2, east), with a cable between w1 and w2. What fails is
//! the near one.

use super::{Arrivals, Flow, LEFT, LIMIT, Network, RIGHT, RunningBox, Traffic, Transfer};
use super::{Namespace, has_af_xdp};
use crate::{Program, kill};
use serde_json::Value;
use std::fmt;
use std::fs;
use std::ops::Range;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Addresses of the hosts that all paths lead to.
pub const LOOPBACKS: [&str; 2] = ["10.97.0.1", "10.97.0.2"];
/// The host behind a TAP device: this machine, in the boxes' namespace.
const BEHIND_TAP: &str = "10.99.0.3";
const TAP: &str = "lhtap";
/// Of the near box in [`Failure::FullStore`].
const WINDOW_BYTES: u64 = 1 << 20;
/// Time until a failure is repaired. Linux reports one carrier loss per second.
const HOLD: Duration = Duration::from_secs(2);
/// Time in which frames that were under way have arrived.
const UNDER_WAY: Duration = Duration::from_millis(100);

/// What fails, and is repaired unless it is an upgrade.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The box's process is killed; it is started again.
    Kill,
    /// The box, its guard and the carrier of its ports end at once; all return.
    PowerCut,
    /// The cable between the boxes.
    CablePull,
    /// `--replace`.
    Upgrade,
    /// The box is restarted with a key that the far one does not know; then with the right one.
    WrongKey,
    /// A responder takes nothing any more until the store is full; then it does.
    FullStore,
}

/// Where the boxes stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Topology {
    /// Everything crosses the boxes.
    InLine,
    /// Each beside a kernel bridge, which carries all but RoCE.
    Bridge,
    /// In line, with a second path that routing may take.
    Routes,
}

/// Kind of the boxes' ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ports {
    /// AF_PACKET.
    Packet,
    /// AF_XDP in the driver.
    XdpNative,
    /// AF_XDP behind the driver.
    XdpGeneric,
    /// A TAP device as the near box's LAN port; the others are AF_PACKET.
    Tap,
    /// Shared memory as the near box's LAN port; the others are AF_PACKET.
    Memif,
    /// DPDK.
    Dpdk,
}

impl Failure {
    /// All failures.
    pub const ALL: [Failure; 6] = [
        Failure::Kill,
        Failure::PowerCut,
        Failure::CablePull,
        Failure::Upgrade,
        Failure::WrongKey,
        Failure::FullStore,
    ];
}

impl Topology {
    /// All topologies.
    pub const ALL: [Topology; 3] = [Topology::InLine, Topology::Bridge, Topology::Routes];
}

impl Ports {
    /// All kinds.
    pub const ALL: [Ports; 6] =
        [Ports::Packet, Ports::XdpNative, Ports::XdpGeneric, Ports::Tap, Ports::Memif, Ports::Dpdk];
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Failure::Kill => "kill -9",
            Failure::PowerCut => "power cut",
            Failure::CablePull => "cable pull",
            Failure::Upgrade => "upgrade",
            Failure::WrongKey => "wrong key",
            Failure::FullStore => "full store",
        })
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Topology::InLine => "in line",
            Topology::Bridge => "beside a bridge",
            Topology::Routes => "routes around",
        })
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Ports::Packet => "AF_PACKET",
            Ports::XdpNative => "AF_XDP native",
            Ports::XdpGeneric => "AF_XDP generic",
            Ports::Tap => "TAP",
            Ports::Memif => "memif",
            Ports::Dpdk => "DPDK",
        })
    }
}

/// One combination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// What fails.
    pub failure: Failure,
    /// Where.
    pub topology: Topology,
    /// Through which ports.
    pub ports: Ports,
}

impl Cell {
    /// All combinations.
    pub fn all() -> impl Iterator<Item = Cell> {
        Topology::ALL.into_iter().flat_map(|topology| {
            Ports::ALL.into_iter().flat_map(move |ports| {
                Failure::ALL.into_iter().map(move |failure| Cell { failure, topology, ports })
            })
        })
    }

    /// Why this combination does not exist, or cannot be tried here.
    pub fn absent(self) -> Option<&'static str> {
        let is_xdp = matches!(self.ports, Ports::XdpNative | Ports::XdpGeneric);
        match (self.topology, self.ports, self.failure) {
            (_, Ports::Dpdk, _) => Some("needs a network card that the kernel gives up"),
            (Topology::Bridge, ..) if !is_xdp => Some("only AF_XDP ports have only=roce"),
            (Topology::Routes, Ports::Tap, _) => {
                Some("the host is the box's own machine: nothing leads around it")
            }
            (Topology::Routes, Ports::Memif, _) => Some("shared memory has no carrier"),
            (_, Ports::Tap | Ports::Memif, Failure::PowerCut) => {
                Some("the machine of the box is that of the host too")
            }
            (_, Ports::Memif, Failure::Upgrade) => {
                Some("refused: the memory belongs to the connection with the peer")
            }
            _ => None,
        }
    }

    /// Makes the network, the failure and the repair. `None`: this machine cannot, and it was
    /// reported that `what` is skipped.
    ///
    /// # Panics
    /// If RDMA does not cross the boxes before or after, the connection ends, or something does not
    /// flow again.
    pub fn run(self, what: &str) -> Option<Outcome> {
        let is_xdp = matches!(self.ports, Ports::XdpNative | Ports::XdpGeneric);
        if is_xdp && !has_af_xdp(what) {
            return None;
        }
        let network = Network::new(what, 1500)?;
        let mut site = Site::new(&network, self);
        site.transfer();
        let traffic = Traffic::start([site.client(), &network.right], LOOPBACKS);
        let Event { failed, during, stalled } = site.fail();
        let repaired = during.as_ref().map(|during| during.end);
        let since = repaired.unwrap_or(failed);
        let resumed = traffic.wait_until_resumed(since, LIMIT);
        let ended = Instant::now();
        let arrivals = traffic.end().unwrap_or_else(|reason| panic!("{self:?}: {reason}"));
        assert!(resumed, "{self:?}: some traffic does not flow again");
        site.transfer();
        site.end();
        let meanwhile = during.map(|during| {
            arrivals.each_ref().map(|arrivals| arrivals.count(during.start, during.end))
        });
        Some(Outcome { failed, repaired, ended, arrivals, stalled, meanwhile })
    }
}

/// What happened to the traffic of a cell.
pub struct Outcome {
    failed: Instant,
    repaired: Option<Instant>,
    ended: Instant,
    /// In the order of [`Flow::ALL`].
    arrivals: [Arrivals; Flow::ALL.len()],
    /// Of a full store: from the repair until its flow goes on.
    pub stalled: Option<Duration>,
    /// Arrivals while a failure had its full effect and was not repaired, in the order of
    /// [`Flow::ALL`].
    pub meanwhile: Option<[usize; Flow::ALL.len()]>,
}

/// Times of one flow.
#[derive(Clone, Copy, Debug)]
pub struct Resumption {
    /// From the failure until it flows again without a repair; `None` if it does not.
    pub after_failure: Option<Duration>,
    /// From the repair until it flows again; zero if it did before. `None` without a repair.
    pub after_repair: Option<Duration>,
    /// The longest silence.
    pub longest_gap: Duration,
}

impl Outcome {
    /// Times of a flow.
    pub fn of(&self, flow: Flow) -> Resumption {
        let arrivals = &self.arrivals[flow as usize];
        Resumption {
            after_failure: arrivals.resumed(self.failed, self.repaired.unwrap_or(self.ended)),
            after_repair: self.repaired.and_then(|at| arrivals.resumed(at, self.ended)),
            longest_gap: arrivals.longest_gap(self.failed, self.ended),
        }
    }
}

/// Times of a failure.
struct Event {
    failed: Instant,
    /// From its full effect until the repair.
    during: Option<Range<Instant>>,
    stalled: Option<Duration>,
}

/// A network with its boxes.
struct Site<'a> {
    network: &'a Network,
    cell: Cell,
    near: Option<RunningBox>,
    /// The far box, and those that only lead to the boxes.
    others: Vec<RunningBox>,
    /// Public keys of near and far.
    public: [String; 2],
}

const NAMES: [&str; 2] = ["near", "far"];
const STRANGER: &str = "stranger";

impl<'a> Site<'a> {
    fn new(network: &'a Network, cell: Cell) -> Self {
        let mut site =
            Site { network, cell, near: None, others: vec![], public: Default::default() };
        // Room for the transport between the boxes.
        for cable in ["w1", "w2"] {
            network.middle.set(&format!("link set {cable} mtu 1600"));
        }
        match cell.ports {
            Ports::XdpGeneric => network.cut_datagrams_at_hosts(),
            Ports::Tap => {
                network.middle.set(&format!("tuntap add {TAP} mode tap"));
                network.middle.set(&format!("link set {TAP} addrgenmode none up"));
                network.middle.set(&format!("address add {BEHIND_TAP}/24 dev {TAP}"));
            }
            Ports::Memif => site.others.push(network.start(&format!(
                "emulate --name cable --a west --b {},master --rate 100G",
                site.memif()
            ))),
            _ => {}
        }
        if cell.topology == Topology::Bridge {
            for (bridge, ports) in [("lhnear", ["west", "w1"]), ("lhfar", ["w2", "east"])] {
                network.middle.set(&format!("link add {bridge} type bridge"));
                for port in ports {
                    network.middle.set(&format!("link set {port} master {bridge}"));
                }
                network.middle.set(&format!("link set {bridge} addrgenmode none up"));
            }
        }
        site.routes();
        if cell.failure == Failure::WrongKey {
            site.public = NAMES.map(|name| site.key(name));
            site.key(STRANGER);
        }
        let far = site.command(1, NAMES[1]);
        site.others.push(network.start(&far));
        site.start(NAMES[0]);
        site
    }

    fn client(&self) -> &'a Namespace {
        if self.cell.ports == Ports::Tap { &self.network.middle } else { &self.network.left }
    }

    fn client_address(&self) -> &'static str {
        if self.cell.ports == Ports::Tap { BEHIND_TAP } else { LEFT }
    }

    fn routes(&self) {
        let hosts = [self.client(), &self.network.right];
        let by_boxes = [RIGHT, self.client_address()];
        let has_second = self.cell.topology == Topology::Routes;
        if has_second {
            hosts[0].set("link add alt type veth peer name far");
            hosts[0].set(&format!("link set far netns {}", hosts[1].name));
            hosts[1].set("link set far name alt");
        }
        for (at, host) in hosts.into_iter().enumerate() {
            let (own, other) = (LOOPBACKS[at], LOOPBACKS[1 - at]);
            host.set(&format!("address add {own}/32 dev lo"));
            host.set(&format!("route add {other}/32 via {} src {own} metric 10", by_boxes[at]));
            if !has_second {
                continue;
            }
            host.set(&format!("address add 10.96.0.{}/24 dev alt", at + 1));
            host.set("link set alt up");
            host.set(&format!("route add {other}/32 via 10.96.0.{} src {own} metric 20", 2 - at));
            for setting in [
                "net.ipv4.conf.eth0.ignore_routes_with_linkdown=1",
                "net.ipv4.conf.all.rp_filter=0",
                "net.ipv4.conf.eth0.rp_filter=0",
                "net.ipv4.conf.alt.rp_filter=0",
            ] {
                let set = || Command::new("sysctl").args(["-q", "-w", setting]).status();
                assert!(host.inside(set).expect("sysctl").success(), "{setting}");
            }
        }
    }

    /// Makes a key, and returns the public one.
    fn key(&self, name: &str) -> String {
        let file = self.network.runtime.path().join(name).with_extension("key");
        let mut command = self.network.runtime.longhaul(&format!("key new {}", file.display()));
        Program::start(&mut command).succeed(LIMIT).stdout.trim().to_owned()
    }

    fn memif(&self) -> String {
        format!("memif:{}", self.network.runtime.path().join("lan.sock").display())
    }

    /// Ports of a box.
    fn ports(&self, at: usize) -> [String; 2] {
        let only = if self.cell.topology == Topology::Bridge { ",only=roce" } else { "" };
        let port = |name: &str| match self.cell.ports {
            Ports::XdpNative => format!("xdp:{name},native{only}"),
            Ports::XdpGeneric => format!("xdp:{name},generic{only}"),
            _ => name.to_owned(),
        };
        let [lan, wan] = [["west", "w1"], ["east", "w2"]][at].map(port);
        let lan = match self.cell.ports {
            Ports::Tap if at == 0 => format!("tap:{TAP}"),
            Ports::Memif if at == 0 => format!("{},slave", self.memif()),
            _ => lan,
        };
        [lan, wan]
    }

    /// Arguments of a box, with the key of this name if it needs one.
    fn command(&self, at: usize, key: &str) -> String {
        let [lan, wan] = self.ports(at);
        let options = match self.cell.failure {
            Failure::WrongKey => {
                let file = self.network.runtime.path().join(key).with_extension("key");
                let (peer, public) = (NAMES[1 - at], &self.public[1 - at]);
                format!(" --transport --key {} --peer {peer}={public}", file.display())
            }
            Failure::FullStore if at == 0 => format!(" --window {WINDOW_BYTES}"),
            _ => String::new(),
        };
        format!("accelerate --name {} --lan {lan} --wan {wan}{options}", NAMES[at])
    }

    /// Starts the near box with the key of this name.
    fn start(&mut self, key: &str) {
        let near = self.network.start(&self.command(0, key));
        if self.cell.ports == Ports::Memif {
            self.network.wait_for(&near, "attached", |status| {
                status["pairs"][0]["ports"][0]["link_is_up"] == true
            });
        }
        self.near = Some(near);
    }

    fn stop(&mut self, signal: libc::c_int) {
        let near = self.near.take().expect("a box");
        near.signal(signal);
        near.program.finish(LIMIT);
    }

    fn begin(&self, arguments: &str) -> Transfer {
        self.network.begin_at(self.client(), [self.client_address(), RIGHT], arguments)
    }

    /// A short RDMA transfer through the boxes.
    fn transfer(&self) {
        let Transfer { client, server } = self.begin("ib_write_bw -s 65536 -m 1024 -n 100 -u 18");
        client.succeed(LIMIT);
        server.succeed(LIMIT);
    }

    fn fail(&mut self) -> Event {
        let middle = &self.network.middle;
        let failed = Instant::now();
        let mut event = Event { failed, during: None, stalled: None };
        match self.cell.failure {
            Failure::Kill => {
                self.stop(libc::SIGKILL);
                event.during = Some(hold());
                self.start(NAMES[0]);
            }
            Failure::PowerCut => {
                self.cut_power();
                event.during = Some(hold());
                for port in ["west", "w1"] {
                    middle.set(&format!("link set {port} up"));
                }
                self.take_ports_down();
                self.start(NAMES[0]);
            }
            Failure::CablePull => {
                middle.set("link set w2 down");
                event.during = Some(hold());
                middle.set("link set w2 up");
            }
            Failure::Upgrade => self.upgrade(),
            Failure::WrongKey => {
                self.stop(libc::SIGTERM);
                self.start(STRANGER);
                event.during = Some(hold());
                self.stop(libc::SIGTERM);
                self.start(NAMES[0]);
            }
            Failure::FullStore => return self.fill_store(),
        }
        event
    }

    /// Everything of the near box's machine ends at once.
    fn cut_power(&mut self) {
        let near = self.near.take().expect("a box");
        kill(near.guard(), libc::SIGKILL);
        near.signal(libc::SIGKILL);
        for port in ["west", "w1"] {
            self.network.middle.set(&format!("link set {port} down"));
        }
        near.program.finish(LIMIT);
    }

    /// What the units do before a box starts.
    fn take_ports_down(&self) {
        let file = self.network.runtime.path().join("near.toml");
        let [lan, wan] = self.ports(0);
        fs::write(&file, format!("[[pair]]\nlan = '{lan}'\nwan = '{wan}'\n")).expect("a file");
        let arguments = format!("accelerate down --config {}", file.display());
        let mut command = self.network.middle.longhaul(&self.network.runtime, &arguments);
        Program::start(&mut command).succeed(LIMIT);
    }

    fn upgrade(&mut self) {
        let RunningBox { program, name } = self.near.take().expect("a box");
        let arguments = format!("{} --replace", self.command(0, NAMES[0]));
        let mut command = self.network.middle.longhaul(&self.network.runtime, &arguments);
        let mut next = Program::start(&mut command);
        next.wait_for_output(&format!("took over from process {}", program.id()), LIMIT);
        program.succeed(LIMIT);
        self.near = Some(RunningBox { program: next, name });
    }

    /// Packets that the near box has ever stored.
    fn stored(&self) -> u64 {
        let near = self.near.as_ref().expect("a box");
        stored_packets(&self.network.status(near))
    }

    fn wait_for_stored(&self, packets: u64) {
        let near = self.near.as_ref().expect("a box");
        self.network.wait_for(near, "a flow that runs", |status| stored_packets(status) >= packets);
    }

    fn fill_store(&self) -> Event {
        let near = self.near.as_ref().expect("a box");
        let before = self.stored();
        // Retries for longer than the store is full.
        let Transfer { client, server } = self.begin("ib_write_bw -s 65536 -m 1024 -n 2000 -u 19");
        self.wait_for_stored(before + 2000);
        let failed = Instant::now();
        server.signal(libc::SIGSTOP);
        self.network.wait_for(near, "a full store", |status| {
            let stored = status["pairs"][0]["accelerator"]["stored_bytes"].as_u64();
            stored >= Some(WINDOW_BYTES / 10 * 9)
        });
        let during = hold();
        let stored = self.stored();
        server.signal(libc::SIGCONT);
        self.wait_for_stored(stored + 1);
        let stalled = Some(during.end.elapsed());
        client.succeed(LIMIT);
        server.succeed(LIMIT);
        Event { failed, during: Some(during), stalled }
    }

    fn end(self) {
        for one in self.near.into_iter().chain(self.others) {
            one.end();
        }
    }
}

fn stored_packets(status: &Value) -> u64 {
    status["pairs"][0]["accelerator"]["counters"]["stored_packets"].as_u64().expect("a counter")
}

/// Lets a failure last. Its full effect begins when what was under way has arrived.
fn hold() -> Range<Instant> {
    sleep(UNDER_WAY);
    let begin = Instant::now();
    sleep(HOLD);
    begin..Instant::now()
}
