//! From a scenario to its outcome.

use crate::addresses;
use crate::host::{Caller, Goal, Host, Migration, Op, Program, Service, Waiting};
use crate::network::{CablePlan, Network, Plan};
use crate::oracle::Watched;
use crate::outcome::{FlowOutcome, Outcome, StationOutcomes, WireOutcome};
use crate::pfc;
use crate::programs::{self, End};
use crate::record::Recorder;
use crate::scenario::{Connect, Events, Flow, Scenario, StationKind, Test, Transport, Until};
use crate::station::Station;
use longhaul_link::DropReason;
use longhaul_node::Side;
use longhaul_switch::Switch;
use longhaul_units::{Duration, Instant, Psn, Rng, SplitMix64};
use longhaul_wan_box::WanBox;
use thiserror::Error;

/// Port on which a host's first program listens: perftest's.
const PORT_FIRST: u16 = 18515;
/// Silence after which messages of an unreliable transport that are missing will not arrive.
const QUIET: Duration = Duration::from_ms(1000);
/// Maximum pieces of a guest's memory: each needs two bytes.
const PIECES_MAX: u64 = 1 << 24;

/// A network ready to run.
pub struct Simulation {
    network: Network,
    scenario: Scenario,
    /// Programs and slots of each flow.
    ends: Vec<[End; 2]>,
}

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The current virtual time.
    pub now: Instant,
    /// Events so far.
    pub events: u64,
    /// Messages completed, of all flows.
    pub messages: u64,
    /// Messages that flows with a message count will complete.
    pub messages_planned: u64,
}

/// An invalid scenario.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ScenarioError {
    /// A cable or a flow refers to a station that does not exist.
    #[error("{what} names station {station}, but there are {stations}")]
    NoStation {
        /// The cable or flow.
        what: String,
        /// The number.
        station: usize,
        /// Number of stations.
        stations: usize,
    },
    /// A side has more than one cable, or lacks a required one.
    #[error("{station}: side {side} has {cables} cables; it needs exactly one")]
    Side {
        /// The station's name.
        station: String,
        /// The side.
        side: Side,
        /// Number of cables that end there.
        cables: usize,
    },
    /// A flow to or from a station that is not a host.
    #[error("flow {flow}: {station} is no host")]
    NoHost {
        /// The flow's name.
        flow: String,
        /// The station's name.
        station: String,
    },
    /// An invalid flow.
    #[error("flow {flow}: {why}")]
    Flow {
        /// Its name.
        flow: String,
        /// The error.
        why: String,
    },
    /// An invalid cable.
    #[error("the cable between {0} and {1}: {2}")]
    Cable(String, String, longhaul_link::LinkError),
    /// An invalid switch.
    #[error("{0}: {1}")]
    Switch(String, longhaul_switch::SwitchError),
    /// An invalid box.
    #[error("{0}: {1}")]
    Box(String, longhaul_wan_box::ConfigError),
    /// An invalid host.
    #[error("{0}: {1}")]
    Host(String, longhaul_rnic::VerbsError),
    /// An invalid NIC.
    #[error("{0}: {1}")]
    Nic(String, String),
}

impl Simulation {
    /// Builds the network. `record` returns the recorders of a cable's direction (cable, sending
    /// end).
    ///
    /// # Errors
    /// [`ScenarioError`], before anything has run.
    pub fn new<R: IntoIterator<Item = Recorder>>(
        scenario: Scenario,
        mut record: impl FnMut(usize, usize) -> R,
    ) -> Result<Self, ScenarioError> {
        check(&scenario)?;
        let mut seeds = SplitMix64::new(scenario.seed);
        let joined = addresses::joined(&scenario);
        let mut stations = Vec::new();
        for number in 0..scenario.stations.len() {
            stations.push(station(&scenario, number, &joined, seeds.next_u64())?);
        }
        let ends = connect(&scenario, &mut stations, &mut seeds)?;
        let mut cables = Vec::new();
        for (number, cable) in scenario.cables.iter().enumerate() {
            let mut plan = CablePlan::new(cable.ends, cable.wire.clone(), seeds.next_u64());
            if cable.loss_toward_second_only {
                plan.wires[1].loss = 0.0;
            }
            for end in [0, 1] {
                let profile = |station: usize| match &scenario.stations[station].kind {
                    StationKind::Host(profile) => Some(profile),
                    _ => None,
                };
                if let Some(profile) = profile(cable.ends[end].0) {
                    plan.gaps[end] = Duration::from_ns(profile.packet_ns);
                }
                if let Some(profile) = profile(cable.ends[1 - end].0) {
                    plan.wires[end].add_delay(Duration::from_ns(profile.responder_ns));
                }
                plan.recorders[end] = record(number, end).into_iter().collect();
            }
            plan.train_max = trains(&scenario, cable, &plan);
            cables.push(plan);
        }
        let name = |end: usize, cable: &crate::scenario::Cable| {
            scenario.stations[cable.ends[end].0].name.clone()
        };
        let network = Network::new(Plan { stations, cables }).map_err(|why| {
            let cable = scenario
                .cables
                .iter()
                .find(|cable| longhaul_link::Wire::new(&cable.wire, 0, 0).is_err());
            match cable {
                Some(cable) => ScenarioError::Cable(name(0, cable), name(1, cable), why),
                None => ScenarioError::Cable(String::new(), String::new(), why),
            }
        })?;
        Ok(Simulation { network, scenario, ends })
    }

    /// Maximum number of useful threads.
    pub fn threads_max(&self) -> usize {
        self.network.regions()
    }

    /// Runs to the end on at most `threads` threads. `watch` is called periodically with the
    /// progress and ends the run by returning `false`. The outcome does not depend on the number of
    /// threads.
    pub fn run(mut self, threads: usize, mut watch: impl FnMut(Progress) -> bool) -> Outcome {
        let end =
            self.scenario.time_max.map_or(Instant::from_ps(u64::MAX), |time| Instant::ZERO + time);
        let (scenario, ends) = (&self.scenario, &self.ends);
        let mut is_stopped = false;
        self.network.run(end, threads, |network| {
            let progress = progress(network, scenario, ends);
            is_stopped = !watch(progress);
            // Packets that an accelerator acknowledged still travel to the responder.
            let mut flows = scenario.flows.iter().zip(ends);
            let is_over = flows.all(|(flow, ends)| {
                is_done(network, &ends[0]) && !is_under_way(network, flow, ends)
            });
            !is_stopped && !is_over
        });
        let is_done = self.ends.iter().all(|ends| is_done(&self.network, &ends[0]));
        let unfinished = if is_done {
            None
        } else if is_stopped {
            Some("stopped".to_owned())
        } else if self.network.now() >= end {
            Some("its time was over".to_owned())
        } else {
            Some("nothing was left to happen".to_owned())
        };
        let is_cut = is_stopped || self.network.now() >= end;
        self.outcome(unfinished, is_cut)
    }

    /// Collects the outcome. `is_cut`: there were more events.
    fn outcome(mut self, unfinished: Option<String>, is_cut: bool) -> Outcome {
        let network = &self.network;
        let mut violations = Vec::new();
        let flows = self.scenario.flows.iter().zip(&self.ends);
        let flows = flows
            .map(|(flow, ends)| {
                let window = programs::window(flow, self.scenario.warmup);
                FlowOutcome::of(network, flow, ends, window, &mut violations)
            })
            .collect();
        let stations = &self.scenario.stations;
        let may_hold = is_cut && stations.iter().any(|it| matches!(it.kind, StationKind::Box(_)));
        for (flow, ends) in self.scenario.flows.iter().zip(&self.ends) {
            if !may_hold && flow.transport == Transport::Rc && is_under_way(network, flow, ends) {
                violations.push(format!("{}: messages completed and did not arrive", flow.name));
            }
        }
        let mut wires = Vec::new();
        for (number, cable) in self.scenario.cables.iter().enumerate() {
            for end in [0, 1] {
                let counters = network.passed(number, end);
                let lost = [DropReason::Loss, DropReason::Cut, DropReason::Rule];
                wires.push(WireOutcome {
                    from: stations[cable.ends[end].0].name.clone(),
                    to: stations[cable.ends[1 - end].0].name.clone(),
                    entered_frames: counters.entered_frames,
                    entered_bytes: counters.entered_bytes,
                    delivered_frames: counters.delivered_frames,
                    lost_frames: lost.map(|reason| counters.drops.get(reason)).iter().sum(),
                    queue_full_frames: counters.drops.get(DropReason::QueueFull),
                    ecn_marked_frames: counters.ecn_marked_frames,
                    late_frames: counters.late_frames,
                    duplicated_frames: counters.duplicated_frames,
                    corrupted_frames: counters.corrupted_frames,
                    queue_bytes_max: counters.queue_bytes_max,
                });
                if counters.queue_bytes_max > cable.wire.queue_bytes {
                    violations.push(format!(
                        "cable {number}: its queue had {} bytes",
                        counters.queue_bytes_max
                    ));
                }
            }
        }
        let stations = StationOutcomes::of(&self.scenario, network, &mut violations);
        let outcome = Outcome {
            ended_at_ns: network.now().as_ns(),
            events: network.events(),
            unfinished,
            flows,
            wires,
            hosts: stations.hosts,
            accelerators: stations.accelerators,
            switches: stations.switches,
            warnings: self.scenario.warnings(),
            violations,
        };
        for recorder in self.network.take_recorders() {
            // The recorder's owner learns of errors through its writer.
            drop(recorder.finish());
        }
        outcome
    }
}

/// Creates the `number`-th station.
fn station(
    scenario: &Scenario,
    number: usize,
    joined: &[Vec<(Side, usize)>],
    seed: u64,
) -> Result<Station, ScenarioError> {
    let plan = &scenario.stations[number];
    let rate = |side| pfc::cable_at(scenario, (number, side))?.wire.rate;
    Ok(match &plan.kind {
        StationKind::Host(profile) => {
            let at =
                |flow: &Flow| usize::from(flow.from == number) + usize::from(flow.to == number);
            let qps = scenario.flows.iter().map(|flow| at(flow) * flow.qps as usize).sum();
            let port = pfc::port(scenario, number, profile)
                .map_err(|why| ScenarioError::Nic(plan.name.clone(), why))?;
            let host = Host::new(number, profile, port, qps, seed);
            Station::Host(Box::new(
                host.map_err(|why| ScenarioError::Host(plan.name.clone(), why))?,
            ))
        }
        StationKind::Box(config) => {
            let rates = (0..sides_of_box(config)).map(rate).collect();
            let made = WanBox::new((**config).clone().seeded(seed));
            let made = made.map_err(|why| ScenarioError::Box(plan.name.clone(), why))?;
            Station::Box(Box::new(Watched::new(made, rates)))
        }
        StationKind::Switch(config) => {
            let config = addresses::with_room(config, scenario);
            let made = Switch::new(longhaul_switch::SwitchConfig { seed, ..config });
            let made = made.and_then(|mut switch| {
                addresses::declare(&mut switch, number, scenario, joined)?;
                Ok(switch)
            });
            Station::Switch(Box::new(
                made.map_err(|why| ScenarioError::Switch(plan.name.clone(), why))?,
            ))
        }
    })
}

/// The LAN side, and one for each path.
fn sides_of_box(config: &longhaul_wan_box::Config) -> Side {
    1 + config.whole.as_ref().map_or(1, |whole| whole.transport.paths.len())
}

/// Maximum packets per train on a cable.
fn trains(scenario: &Scenario, cable: &crate::scenario::Cable, plan: &CablePlan) -> u32 {
    // A NIC with a time per received packet or message cannot receive trains.
    let joins_hosts = cable.ends.iter().all(|end| match &scenario.stations[end.0].kind {
        StationKind::Host(profile) => {
            profile.receive_packet_ns == 0
                && (profile.srq_depth == 0 || profile.srq_message_ns == 0)
        }
        _ => false,
    });
    let is_plain = plan.recorders.iter().all(Vec::is_empty) && cable.wire.ecn.is_none();
    if joins_hosts && is_plain { scenario.train_packets_max.clamp(1, 1024) } else { 1 }
}

fn is_done(network: &Network, end: &End) -> bool {
    network.host(end.host).is_done(end.program)
}

/// Returns whether fewer messages were delivered than completed.
fn is_under_way(network: &Network, flow: &Flow, [requester, responder]: &[End; 2]) -> bool {
    let program = network.host(requester.host).program(requester.program);
    if matches!(program, Program::Initiator(it) if it.commands().is_in_capsule()) {
        // Data in capsules leave no trace.
        return false;
    }
    // Of a latency test, the next message waits for the last.
    let Some((completed, last, goal)) = program.completed() else { return false };
    let target = target(flow, requester, responder);
    let nic = network.host(target.host).nic();
    let arrived: u64 = target.slots.iter().map(|&slot| nic.messages(slot)).sum();
    if flow.transport == Transport::Uc {
        let of_slots = target.slots.iter().map(|&slot| nic.arrivals(slot).last);
        let last = of_slots.max().unwrap_or(last).max(last);
        let is_quiet = network.now() > last + QUIET;
        return matches!(goal, Goal::Messages(_)) && arrived < completed && !is_quiet;
    }
    flow.op != Op::Atomic && arrived < completed
}

/// The end that receives the payload: the responder, for READs the requester.
pub(crate) fn target<'a>(flow: &Flow, requester: &'a End, responder: &'a End) -> &'a End {
    if flow.op == Op::Read { requester } else { responder }
}

fn progress(network: &Network, scenario: &Scenario, ends: &[[End; 2]]) -> Progress {
    let mut progress =
        Progress { now: network.now(), events: network.events(), messages: 0, messages_planned: 0 };
    for (flow, [end, _]) in scenario.flows.iter().zip(ends) {
        let program = network.host(end.host).program(end.program);
        if let Some((completed, _, goal)) = program.completed() {
            progress.messages += completed;
            if let Goal::Messages(each) = goal {
                progress.messages_planned += each * u64::from(flow.qps);
            }
        } else if let Program::Latency(program) = program {
            progress.messages += program.latencies.len() as u64;
        }
    }
    progress
}

/// Creates the programs and their QPs, connects these, and starts the programs.
fn connect(
    scenario: &Scenario,
    stations: &mut [Station],
    seeds: &mut SplitMix64,
) -> Result<Vec<[End; 2]>, ScenarioError> {
    let mut ends = Vec::new();
    let mut ports = vec![PORT_FIRST; stations.len()];
    let mut queues = vec![0; stations.len()];
    for flow in &scenario.flows {
        let mut made = Vec::new();
        for (at, create) in [
            (flow.from, programs::requester as fn(_, _, &mut Host, _) -> _),
            (flow.to, programs::responder),
        ] {
            let Station::Host(host) = &mut stations[at] else { unreachable!("checked") };
            let end: Result<End, longhaul_rnic::VerbsError> =
                create(flow, at, host, scenario.warmup);
            let name = &scenario.stations[at].name;
            made.push(end.map_err(|why| ScenarioError::Host(name.clone(), why))?);
        }
        let psns: Vec<[Psn; 2]> = (0..flow.qps)
            .map(|_| [0, 1].map(|_| Psn::new(seeds.next_u64() as u32 & 0xff_ffff)))
            .collect();
        for (qp, psns) in psns.iter().enumerate() {
            connect_qps(flow, stations, [made[0].slots[qp], made[1].slots[qp]], *psns)?;
        }
        let starts_at = Instant::ZERO + flow.starts_at;
        let start =
            |host: &mut Host, end: &End| host.start(end.program, starts_at, end.slots.clone());
        let [from, to] = hosts(stations, flow);
        // The responder first, so that receives are posted before the first message.
        match flow.connect {
            Connect::OutOfBand => {
                start(to, &made[1]);
                start(from, &made[0]);
            }
            Connect::ConnectionManager { listens } => {
                let depth = match flow.test {
                    Test::Storage { depth, .. } => Some(depth),
                    _ => None,
                };
                let (port, first) = if depth.is_some() {
                    let first = queues[flow.to];
                    queues[flow.to] += if listens { flow.qps } else { 0 };
                    (longhaul_nvme::PORT, first)
                } else {
                    let port = ports[flow.to];
                    ports[flow.to] = port.checked_add(1).ok_or_else(|| too_many_ports(flow))?;
                    (port, 0)
                };
                let waiting = |end: usize| {
                    let of_peer = psns.iter().map(|psns| psns[1 - end]);
                    let pairs = made[end].slots.iter().zip(of_peer);
                    pairs.map(|(&slot, peer_psn)| Waiting { slot, peer_psn }).collect()
                };
                let service = Service { qps: waiting(1), port, depth };
                to.serve(service, listens).map_err(|why| flow_error(flow, &why))?;
                start(to, &made[1]);
                let (program, mtu) = (made[0].program, flow.mtu);
                let (qps, to) = (waiting(0), to.ip());
                let caller = Caller { program, qps, to, port, first, depth, mtu, starts_at };
                from.call(caller).map_err(|why| flow_error(flow, &why))?;
            }
        }
        let [requester, responder]: [End; 2] =
            made.try_into().unwrap_or_else(|_| unreachable!("two made"));
        ends.push([requester, responder]);
    }
    Ok(ends)
}

/// Connects two QPs of a flow, unless the connection manager does, and registers the connections
/// with the boxes' oracles.
fn connect_qps(
    flow: &Flow,
    stations: &mut [Station],
    slots: [usize; 2],
    psns: [Psn; 2],
) -> Result<(), ScenarioError> {
    let [a, b] = hosts(stations, flow);
    let both = Host::directions((a, slots[0]), (b, slots[1]), flow.mtu, psns);
    if flow.connect == Connect::OutOfBand {
        Host::connect((a, slots[0]), (b, slots[1]), flow.mtu, psns)
            .map_err(|why| flow_error(flow, &why))?;
    }
    for station in stations {
        if let Station::Box(watched) = station {
            both.iter().for_each(|connection| watched.expect(connection));
        }
    }
    Ok(())
}

/// The hosts of a flow: the requester's and the responder's.
fn hosts<'a>(stations: &'a mut [Station], flow: &Flow) -> [&'a mut Host; 2] {
    match stations.get_disjoint_mut([flow.from, flow.to]) {
        Ok([Station::Host(from), Station::Host(to)]) => [from, to],
        _ => unreachable!("checked"),
    }
}

fn flow_error(flow: &Flow, why: &dyn std::fmt::Display) -> ScenarioError {
    ScenarioError::Flow { flow: flow.name.clone(), why: why.to_string() }
}

fn too_many_ports(flow: &Flow) -> ScenarioError {
    let ports = u16::MAX - PORT_FIRST;
    let why = format!(
        "a host listens for at most {ports} flows, each at a port of its own: let the others \
         connect out of band"
    );
    flow_error(flow, &why)
}

/// Checks that all references exist, and that each side has its cable.
fn check(scenario: &Scenario) -> Result<(), ScenarioError> {
    let stations = &scenario.stations;
    let exists = |what: &dyn Fn() -> String, station: usize| match stations.get(station) {
        Some(found) => Ok(found),
        None => Err(ScenarioError::NoStation { what: what(), station, stations: stations.len() }),
    };
    for (number, cable) in scenario.cables.iter().enumerate() {
        for (station, _) in cable.ends {
            exists(&|| format!("cable {number}"), station)?;
        }
    }
    for (number, station) in stations.iter().enumerate() {
        let sides = match &station.kind {
            StationKind::Host(_) => 1,
            StationKind::Box(config) => sides_of_box(config),
            StationKind::Switch(config) => config.ports,
        };
        let of = scenario.cables.iter().flat_map(|cable| cable.ends);
        let highest = of.filter(|end| end.0 == number).map(|end| end.1 + 1).max().unwrap_or(0);
        for side in 0..sides.max(highest) {
            let ends = scenario.cables.iter().flat_map(|cable| cable.ends);
            let cables = ends.filter(|end| *end == (number, side)).count();
            if cables != usize::from(side < sides) {
                return Err(ScenarioError::Side { station: station.name.clone(), side, cables });
            }
        }
    }
    for flow in &scenario.flows {
        let what = || format!("flow {}", flow.name);
        for station in [flow.from, flow.to] {
            let found = exists(&what, station)?;
            if !matches!(found.kind, StationKind::Host(_)) {
                return Err(ScenarioError::NoHost {
                    flow: flow.name.clone(),
                    station: found.name.clone(),
                });
            }
        }
        let profile = |station: usize| match &stations[station].kind {
            StationKind::Host(profile) => Some(profile),
            _ => None,
        };
        let shares = profile(flow.to).is_some_and(|profile| profile.srq_depth > 0);
        if let Some(why) = fault(flow).or_else(|| unsupported(flow, shares)) {
            return Err(ScenarioError::Flow { flow: flow.name.clone(), why });
        }
    }
    Ok(())
}

/// Returns why a flow's combination of keys is impossible or not modelled, if it is. `shares`: its
/// responder has a shared receive queue.
pub(crate) fn unsupported(flow: &Flow, shares: bool) -> Option<String> {
    let is_unreliable = flow.transport == Transport::Uc;
    let by_manager = flow.connect != Connect::OutOfBand;
    if is_unreliable && matches!(flow.op, Op::Read | Op::Atomic) {
        return Some(format!(
            "transport \"uc\" has no {}: say op = \"write_imm\", \"write\" or \"send\"",
            flow.op.name()
        ));
    }
    if is_unreliable && matches!(flow.test, Test::Latency { .. }) {
        let why = "a latency test waits forever for a message that \"uc\" loses: say transport = \
                   \"rc\"";
        return Some(why.into());
    }
    if is_unreliable && by_manager {
        let why = "QPs with transport \"uc\" are connected out of band: take 'connect' out";
        return Some(why.into());
    }
    if flow.events != Events::Off && matches!(flow.test, Test::Latency { .. }) {
        return Some("a latency test polls: take 'events' out".into());
    }
    if flow.events != Events::Off && by_manager {
        let why =
            "programs that wait for events connect out of band: take 'connect' or 'events' out";
        return Some(why.into());
    }
    if let Test::Storage { .. } = flow.test {
        return not_storage(flow, shares).map(str::to_owned);
    }
    if let Test::Migration { migration, .. } = flow.test {
        return not_migration(flow, &migration);
    }
    if shares && flow.op == Op::Send {
        let why = "the shared receive queue of its responder has no memory for SENDs in the \
                   simulator: say op = \"write_imm\", or take 'srq' out";
        return Some(why.into());
    }
    None
}

/// Returns why a flow of live migration is impossible or not modelled, if it is.
fn not_migration(flow: &Flow, migration: &Migration) -> Option<String> {
    let why = if flow.op != Op::Write {
        "a migration writes: say op = \"write\", or take 'op' out"
    } else if flow.qps != 1 {
        "a migration has one QP: take 'qps' out"
    } else if flow.transport == Transport::Uc {
        "a migration needs a reliable transport: take 'transport' out"
    } else if flow.events != Events::Off {
        "the program of a migration polls: take 'events' out"
    } else if migration.writes.is_some_and(|writes| writes.bytes > migration.memory_bytes) {
        "the guest writes more than its memory: lower 'working_set', or raise 'memory'"
    } else {
        let pieces = migration.pieces(flow.message_bytes);
        return (pieces > PIECES_MAX).then(|| {
            format!("the memory is {pieces} messages: {PIECES_MAX} are the most; raise 'size'")
        });
    };
    Some(why.to_owned())
}

/// Returns why a flow of NVMe over Fabrics is impossible or not modelled, if it is.
fn not_storage(flow: &Flow, shares: bool) -> Option<&'static str> {
    if !matches!(flow.op, Op::Read | Op::Write) {
        return Some("a storage test reads or writes: say op = \"read\" or \"write\"");
    }
    if flow.transport == Transport::Uc {
        return Some("NVMe over Fabrics needs a reliable transport: take 'transport' out");
    }
    if flow.events != Events::Off {
        return Some("the programs of a storage test poll: take 'events' out");
    }
    shares.then_some(
        "a storage test has no shared receive queue in the simulator: take 'srq' out of its target",
    )
}

/// Returns the error in a flow's numbers, if any.
fn fault(flow: &Flow) -> Option<String> {
    if flow.from == flow.to {
        return Some("it goes from a host to itself".into());
    }
    if flow.qps == 0 {
        return Some("it has no QP".into());
    }
    if flow.message_bytes == 0 || u64::from(flow.message_bytes) > longhaul_rnic::MESSAGE_MAX {
        return Some(format!("messages of {} bytes: 1 to 2^31 can be", flow.message_bytes));
    }
    if flow.op == Op::Atomic && flow.message_bytes != 8 {
        return Some("an atomic works on 8 bytes".into());
    }
    match flow.test {
        Test::Bandwidth { tx_depth: 0, .. } => Some("a send queue of depth 0 takes nothing".into()),
        Test::Bandwidth { post_list: 0, .. } => Some("lists of 0 messages".into()),
        Test::Bandwidth { tx_depth, post_list, .. } if post_list > tx_depth => {
            Some(format!("lists of {post_list} messages do not fit a send queue of {tx_depth}"))
        }
        Test::Bandwidth { cq_mod: Some(0), .. } => Some("each 0th completion".into()),
        Test::Bandwidth { tx_depth, cq_mod: Some(cq_mod), .. } if cq_mod > tx_depth => Some(
            format!("each {cq_mod}th message is signaled, but the send queue takes {tx_depth}"),
        ),
        test if test.until() == Until::Iterations(0) => Some("no message at all".into()),
        Test::Storage { depth: 0, .. } => Some("no command may be outstanding".into()),
        Test::Migration { depth: 0, .. } => Some("a send queue of depth 0 takes nothing".into()),
        Test::Migration { migration, .. } if migration.memory_bytes == 0 => {
            Some("a guest without memory".into())
        }
        Test::Latency { .. } if flow.qps != 1 => Some("a latency test has one QP".into()),
        _ => None,
    }
}
