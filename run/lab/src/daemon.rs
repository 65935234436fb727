//! The daemon of a lab: drives accelerators and fibre between the hosts' ports until it is told to
//! stop.

use crate::control::Control;
use crate::dir::LabDir;
use crate::error::Error;
use crate::fabric::{Fabric, Sites, Wire};
use crate::holder::{self, Holder};
use crate::log::{Log, Recording, Stderr};
use crate::network::Network;
use crate::node::{LabNode, Occupant, Sides};
use crate::spec::{Accelerate, HostName, NetworkChoice, Spec};
use crate::status::{AcceleratorStatus, HostStatus, LabStatus, SwitchStatus};
use longhaul_boxes::Cause;
use longhaul_boxes::settings::WanRate;
use longhaul_boxes::state::LinkStatus;
use longhaul_host::{
    Clock, Driver, DriverConfig, DriverCounters, Handle, Hook, MalformedFrames, TurnConfig,
};
use longhaul_memif::{Listener, MemifConfig};
use longhaul_netdev::TapPort;
use longhaul_node::{Chain, Mirrored, Side};
use longhaul_port::capture::{CaptureConfig, CapturingPort};
use longhaul_port::{LinkState, Port, PortError};
use longhaul_readahead::Protocol;
use longhaul_switch::SwitchConfig;
use longhaul_units::{Duration as Span, Instant as Moment};
use longhaul_wan_box::{Identity, Path as WanPath, Sizing, WanBox};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::File;
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Message that the hosts can be used.
pub(crate) const READY: &str = "ready";

/// Main function of a daemon. Reads the spec from standard input, and writes readiness or an error,
/// formatted by `phrase`, to standard output.
pub fn serve(phrase: fn(Error) -> String) -> ExitCode {
    let say = |line: &str| writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush());
    let daemon = match read_spec().and_then(|spec| Daemon::open(&spec, Stderr::ToLog)) {
        Ok(daemon) => daemon,
        Err(error) => {
            // The parent may be gone.
            let _ = say(&phrase(error));
            return ExitCode::FAILURE;
        }
    };
    match say(READY) {
        Ok(()) => daemon.run(),
        Err(_) => {
            // The program that started the lab has ended, so nobody would stop it.
            daemon.close();
            ExitCode::FAILURE
        }
    }
}

fn read_spec() -> Result<Spec, Error> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).map_err(Error::ReadSpec)?;
    serde_json::from_str(&text).map_err(Error::NoSpec)
}

/// Interval at which the daemon detects attached programs and requests to stop.
const HOOK_INTERVAL: Span = Span::from_ms(10);

/// Bytes of a host's receive buffer beyond the maximum that an accelerator stores of one flow.
const RECEIVE_BUFFER_SPARE_BYTES: u64 = 64 << 20;

/// The resources of a running lab.
pub struct Daemon {
    spec: Spec,
    dir: LabDir,
    /// Held until the end: a locked lab is up.
    lock: File,
    control: Control,
    log: Log,
    /// Own the sockets' files.
    listeners: Vec<Listener>,
    /// Holds the hosts' namespaces, if they have any.
    holder: Option<Holder>,
    network: Network,
    driver: Driver<LabNode<Fabric>, Box<dyn Port>>,
    handle: Handle<LabNode<Fabric>>,
    stop: Arc<AtomicBool>,
    started: Instant,
}

impl Daemon {
    /// Opens a lab, ready to run.
    ///
    /// # Errors
    /// The reason why it cannot run.
    pub fn open(spec: &Spec, stderr: Stderr) -> Result<Self, Error> {
        let node = build_node(spec)?;
        let dir = LabDir::of(&spec.name)?;
        let lock = dir.claim()?;
        let opened =
            Log::open(&dir, stderr).and_then(|log| Self::open_claimed(spec, &dir, lock, log, node));
        if opened.is_err() {
            dir.remove();
        }
        opened
    }

    fn open_claimed(
        spec: &Spec,
        dir: &LabDir,
        lock: File,
        log: Log,
        mut node: LabNode<Fabric>,
    ) -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::flag::register(signal, stop.clone()).map_err(Error::Signals)?;
        }
        // Before there are threads or descriptors that its process would inherit.
        let (holder, network, kernels) = open_network(spec, dir);
        let (listeners, mut ports) = open_ports(spec, dir, &log)?;
        for (host, kernel) in spec.hosts().zip(kernels) {
            debug_assert_eq!(ports.len(), spec.sides().of_kernel(host));
            ports.push(Box::new(kernel));
            node.add_kernel(host);
        }
        spec.hosts().try_for_each(|host| dir.create_slots(host, spec.slots()))?;
        let control = Control::listen(dir)?;
        dir.describe(spec)?;
        dir.describe_network(&network)?;
        let config = DriverConfig {
            turn: TurnConfig { malformed: MalformedFrames::Carry, ..TurnConfig::default() },
            hook_interval: HOOK_INTERVAL,
            ..DriverConfig::default()
        };
        let (driver, handle) =
            Driver::new(node, ports, Clock::start(), config).map_err(Error::Run)?;
        Ok(Daemon {
            spec: spec.clone(),
            dir: dir.clone(),
            lock,
            control,
            log,
            listeners,
            holder,
            network,
            driver,
            handle,
            stop,
            started: Instant::now(),
        })
    }

    /// Runs the lab until it is told to stop.
    pub fn run(self) -> ExitCode {
        let Daemon { spec, dir, lock, control, log, listeners, holder, network, .. } = self;
        let Daemon { driver, handle, stop, started, .. } = self;
        let sides = spec.sides();
        let asked = handle.clone();
        let logged = dir.clone();
        let status = move || {
            let (spec, network, log) = (spec.clone(), network.clone(), logged.last_words());
            let status = asked.ask(move |_, node| status_of(spec, network, started, node)).ok()?;
            Some(LabStatus { log, ..status })
        };
        let stopped = handle.clone();
        let served = control.serve(status, move || stopped.stop());
        let code = match served {
            Ok(()) => {
                let finished = driver.run(Keeper { sides, handle, stop, log });
                drop((finished, listeners, holder));
                ExitCode::SUCCESS
            }
            Err(error) => {
                log.line(&error.to_string());
                ExitCode::FAILURE
            }
        };
        dir.remove();
        drop(lock);
        code
    }

    /// The network of its hosts.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Ends a lab that has not run.
    fn close(self) {
        self.dir.remove();
    }
}

/// The network of the hosts: its holder, and a port to each kernel.
fn open_network(spec: &Spec, dir: &LabDir) -> (Option<Holder>, Network, Vec<TapPort>) {
    match spec.network {
        _ if spec.back_to_back => (None, Network::None, Vec::new()),
        NetworkChoice::None => (None, Network::None, Vec::new()),
        NetworkChoice::Kernel => match holder::start(spec, dir) {
            Ok((holder, network, kernels)) => (Some(holder), network, kernels),
            Err(why) => (None, Network::Missing { why }, Vec::new()),
        },
    }
}

/// The port of each program slot, in the order of the node's sides.
type Ports = Vec<Box<dyn Port>>;

/// Offers the ports of all hosts, one of them recorded if the spec says so.
fn open_ports(spec: &Spec, dir: &LabDir, log: &Log) -> Result<(Vec<Listener>, Ports), Error> {
    let mut listeners = Vec::new();
    let mut ports = Ports::new();
    if spec.back_to_back {
        // Programs connect to each other.
        return Ok((listeners, ports));
    }
    let sides = spec.sides();
    for host in spec.hosts() {
        let socket = dir.memif_socket(host);
        let refused = |error: Cause| Error::OfferPort { host, error };
        let listener = Listener::bind(&socket).map_err(|e| refused(e.into()))?;
        for slot in 0..sides.slots() {
            let config = MemifConfig::new(&format!("{host}{slot}"));
            let port = listener.port(slot as u32, config).map_err(|e| refused(e.into()))?;
            ports.push(Box::new(port));
        }
        listeners.push(listener);
    }
    if let Some(path) = &spec.pcap {
        let config =
            CaptureConfig { frames_max: Some(spec.pcap_frames), ..CaptureConfig::default() };
        let slots = sides.of(HostName::A, 0)..sides.of(HostName::B, 0);
        let tapped = ports.drain(slots.clone()).collect();
        let taps = Recording::create(path, log.clone())
            .and_then(|recording| CapturingPort::sharing(tapped, recording, config))
            .map_err(|error| Error::Record { path: path.clone(), error })?;
        ports.splice(slots.start..slots.start, taps.into_iter().map(|tap| Box::new(tap) as _));
    }
    Ok((listeners, ports))
}

/// Tasks of the daemon other than moving frames.
struct Keeper {
    sides: Sides,
    handle: Handle<LabNode<Fabric>>,
    stop: Arc<AtomicBool>,
    log: Log,
}

impl Hook<LabNode<Fabric>, Box<dyn Port>> for Keeper {
    fn attend(
        &mut self,
        _now: Moment,
        node: &mut LabNode<Fabric>,
        ports: &mut [Box<dyn Port>],
        _: &DriverCounters,
    ) {
        attach_programs(node, ports);
        if self.stop.load(Ordering::Relaxed) {
            self.handle.stop();
        }
    }

    fn port_error(&mut self, side: Side, error: PortError) {
        let (host, occupant) = self.sides.at(side);
        self.log.line(&match occupant {
            Occupant::Program(slot) => format!("host {host}, program {slot}: {error}"),
            Occupant::Kernel => format!("host {host}, kernel: {error}"),
        });
    }
}

/// Tells the hosts' switches which slots have programs.
fn attach_programs(node: &mut LabNode<Fabric>, ports: &[Box<dyn Port>]) {
    let sides = node.sides();
    for (side, port) in ports.iter().enumerate() {
        if let (host, Occupant::Program(slot)) = sides.at(side) {
            node.set_attached(host, slot, port.link_state() == LinkState::Up);
        }
    }
}

/// Builds the hosts, the fibre, the sites' accelerators and, for more than two hosts, the switches.
fn build_node(spec: &Spec) -> Result<LabNode<Fabric>, Error> {
    let fibre = spec.fibre();
    let link = fibre.link()?;
    let site = |present: bool, number: u64| {
        present.then(|| WanBox::new(box_config(spec, number))).transpose()
    };
    let (near, far) = (site(spec.accelerate.at_a(), 0)?, site(spec.accelerate.at_b(), 1)?);
    let wire: Wire = Chain::new(near, Some(Chain::new(Some(link), far.map(Mirrored))));
    let fabric = match spec.hosts {
        2 => Fabric::Direct(wire),
        hosts => {
            let config = SwitchConfig {
                queue_bytes: spec.queue.bytes(),
                ecn: spec.ecn(),
                seed: spec.seed,
                ..SwitchConfig::new(2, spec.rate)
            };
            let sites = Sites::new(usize::from(hosts), &config, wire);
            Fabric::Switched(Box::new(sites?))
        }
    };
    // A store may be sent at once to a program that is not scheduled; the spare bytes hold other
    // frames of a turn.
    let stored = sizing(spec).accelerator().flow_bytes_max;
    let receive_buffer_bytes = stored.saturating_add(RECEIVE_BUFFER_SPARE_BYTES) as usize;
    let hosts = spec.hosts().map(|host| spec.device_addresses(host));
    Ok(LabNode::new(hosts, spec.sides(), fabric, receive_buffer_bytes))
}

fn sizing(spec: &Spec) -> Sizing {
    Sizing {
        paths: vec![WanPath {
            rate: WanRate::or_known(spec.wan_rate, Some(spec.rate)),
            ..WanPath::of_capacity(Some(spec.rate))
        }],
        delay: Some(spec.fibre().delay),
        memory_bytes: spec.memory.bytes(),
        ..Sizing::default()
    }
}

/// Configuration of the box at a site, 0 or 1.
pub fn box_config(spec: &Spec, site: u64) -> longhaul_wan_box::Config {
    let sizing = sizing(spec);
    let accelerator = longhaul_accel::Config {
        // The link's queue holds the burst of one late turn of this thread.
        burst_bytes: spec.queue.bytes() / 4,
        // Programs that share a processor answer only when they are scheduled.
        rto_min: Span::from_ms(30),
        seed: spec.seed,
        ..sizing.accelerator()
    };
    if !spec.accelerate.has_transport() {
        return longhaul_wan_box::Config::alone(accelerator);
    }
    let identity = Identity::of_scenario(spec.seed.wrapping_add(site));
    let transport = sizing.transport(identity, 0);
    let config = longhaul_wan_box::Config::whole(accelerator, transport, sizing.round_trip());
    let reads_ahead = spec.accelerate == Accelerate::ReadAhead;
    config.reading_ahead(reads_ahead.then(|| longhaul_readahead::Config {
        seed: spec.seed.wrapping_add(site),
        ..sizing.read_ahead(longhaul_readahead::Config::of(&Protocol::ALL))
    }))
}

fn status_of(spec: Spec, network: Network, started: Instant, node: &LabNode<Fabric>) -> LabStatus {
    let wire = node.fabric.wire();
    let beyond = wire.right();
    let boxes = [wire.left(), beyond.and_then(Chain::right).map(|mirrored| &mirrored.0)];
    let site_names = [HostName::A, HostName::B];
    // Frames between hosts back to back do not pass this process.
    let is_between = !spec.back_to_back;
    let hosts = spec.hosts().filter(|_| is_between);
    let link = beyond.and_then(Chain::left).filter(|_| is_between);
    LabStatus {
        pid: std::process::id(),
        uptime_s: started.elapsed().as_secs_f64(),
        hosts: hosts.map(|host| host_status(node, host)).collect(),
        switches: node.fabric.sites().map_or_else(Vec::new, |sites| {
            (0..2).map(|site| SwitchStatus::of(site_names[site], sites.ports(site))).collect()
        }),
        link: link.map(LinkStatus::of).unwrap_or_default(),
        accelerators: site_names
            .into_iter()
            .zip(boxes)
            .filter_map(|(site, whole)| {
                let whole = whole?;
                Some(AcceleratorStatus::of(site, whole))
            })
            .collect(),
        network,
        log: None,
        spec,
    }
}

fn host_status(node: &LabNode<Fabric>, host: HostName) -> HostStatus {
    HostStatus {
        name: host,
        programs: node.programs(host),
        waiting_frames: node.waiting(host),
        counters: node.counters(host),
    }
}
