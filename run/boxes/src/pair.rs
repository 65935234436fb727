//! A pair of ports with the element between them, on one thread, or on one per core that shares it.

use crate::carrier::Attendant;
use crate::cores::Places;
use crate::element::{Element, FLOWS_AT_ONCE, FlowsTold};
use crate::error::Error;
use crate::journal::{self, Level};
use crate::plan::{BoxKind, Pair};
use crate::port::{BoxPort, PortName, mtu};
#[cfg(feature = "dpdk")]
use crate::port_counters::DPDK;
use crate::port_counters::{NETDEV, XDP};
use crate::session_news::SessionNews;
use crate::state::{Flow, Named, ReadAheadState, TransportState, named};
use crate::status::{
    AcceleratorState, CoreStatus, FibreState, LoopStatus, PairStatus, PortStatus, Rates,
};
use crate::stillness::Asked;
use longhaul_accel::FlowStatus;
use longhaul_host::placement::{list_text, run_on};
use longhaul_host::{
    Clock, Driver, DriverConfig, DriverCounters, Handle, Hook, MalformedFrames, TurnConfig,
};
use longhaul_node::Side;
use longhaul_port::{DropReason, LinkState, Port, PortCounters, PortError};
use longhaul_units::{Duration as Span, Instant as Moment};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Interval at which threads check links; also the maximum age of the ports' state in a status.
const HOOK_INTERVAL: Span = Span::from_ms(50);

/// Interval over which rates are averaged.
const RATE_INTERVAL: Span = Span::from_ms(1000);

/// Interval after which a persistent error of a port is reported again, and minimum interval
/// between two different errors.
const SAME_ERROR_AGAIN: Span = Span::from_ms(60_000);
const OTHER_ERROR_AFTER: Span = Span::from_ms(1000);

/// A thread that completes no turn within this time is stuck.
const TURNS_WITHIN: Duration = Duration::from_secs(1);

/// A running pair.
pub struct Running<E> {
    /// One per core.
    threads: Vec<JoinHandle<Option<ElementState>>>,
    /// Each lets a thread begin; dropped before, it ends the thread.
    begins: Vec<SyncSender<()>>,
    observer: Observer<E>,
}

/// Observes a pair from any thread.
pub struct Observer<E> {
    name: String,
    cores: Vec<Core<E>>,
}

/// Observes one of the cores that share a pair's ports.
struct Core<E> {
    handle: Handle<E>,
    seen: Arc<Mutex<Seen>>,
    /// The last probe of the thread, until it is answered: at most one is outstanding.
    asked: Arc<Mutex<Option<Receiver<()>>>>,
    stillness: Arc<Asked>,
}

impl<E> Clone for Observer<E> {
    fn clone(&self) -> Self {
        let core = |core: &Core<E>| Core {
            handle: core.handle.clone(),
            seen: Arc::clone(&core.seen),
            asked: Arc::clone(&core.asked),
            stillness: Arc::clone(&core.stillness),
        };
        Observer { name: self.name.clone(), cores: self.cores.iter().map(core).collect() }
    }
}

/// The state that the element reports.
struct ElementState {
    accelerator: Option<AcceleratorState>,
    responders: Option<AcceleratorState>,
    transport: Option<TransportState>,
    read_ahead: Option<ReadAheadState>,
    fibre: Option<FibreState>,
}

impl ElementState {
    /// Reads the state, without flows.
    fn of(element: &impl Element, now: Moment) -> Self {
        ElementState {
            accelerator: element.accelerator(),
            responders: element.responders(),
            transport: element.transport(now),
            read_ahead: element.read_ahead(),
            fibre: element.fibre(),
        }
    }
}

/// The state that a core's thread last published about its ports and itself.
#[derive(Clone, Default)]
struct Seen {
    ports: Vec<PortStatus>,
    frame_loop: LoopStatus,
    /// Present if several cores share the ports.
    core: Option<CoreStatus>,
}

impl<E: Element> Running<E> {
    /// Prepares a thread per core, each with its element and its queue of each port, which it does
    /// not touch until it [begins](Self::begin). Each thread calls `when_over` when it ends, even
    /// by a panic. `devices`: attended to by the first core.
    pub fn prepare<S: BoxKind>(
        pair: &Pair<S>,
        cores: Vec<(E, Vec<BoxPort>)>,
        places: &Places,
        clock: Clock,
        mut devices: Option<Attendant>,
        when_over: impl FnOnce() + Clone + Send + 'static,
    ) -> Result<Self, Error> {
        let mut running = Running {
            threads: Vec::new(),
            begins: Vec::new(),
            observer: Observer { name: pair.name.clone(), cores: Vec::new() },
        };
        let is_shared = cores.len() > 1;
        for (number, ((element, ports), place)) in cores.into_iter().zip(places).enumerate() {
            let refused = |error| Error::Run { pair: pair.name.clone(), error };
            let config = DriverConfig {
                turn: TurnConfig { malformed: MalformedFrames::Carry, ..TurnConfig::default() },
                hook_interval: HOOK_INTERVAL,
                spins: pair.settings.is_precise(),
                ..DriverConfig::default()
            };
            let (mut driver, handle) =
                Driver::new(element, ports, clock, config).map_err(refused)?;
            let seen = Arc::new(Mutex::new(Seen::default()));
            let stillness = Arc::new(Asked::default());
            let processors = place.as_deref().map(list_text);
            let keeper = Keeper {
                pair: pair.name.clone(),
                core: CoreStatus { core: number, processors, ..CoreStatus::default() },
                is_shared,
                told: Vec::new(),
                sessions: SessionNews::default(),
                watches: pair
                    .named_ports(E::SIDES)
                    .map(|(side, port)| Watch::new(side, port.clone()))
                    .collect(),
                rates_since: clock.now(),
                preferred: 0,
                flows_told: FlowsTold::default(),
                seen: Arc::clone(&seen),
                stillness: Arc::clone(&stillness),
                devices: devices.take(),
            };
            let over = WhenOver(Some(when_over.clone()));
            let (name, place) = (pair.name.clone(), place.clone());
            let (begin, begins) = sync_channel(1);
            let thread = Builder::new().name(format!("pair {name}")).spawn(move || {
                let _over = over;
                if let Some(Err(error)) = place.map(|processors| run_on(&processors)) {
                    let text = format!("core {number} runs on any processor: {error}");
                    journal::of_pair(Level::Warning, &name, &text);
                }
                begins.recv().ok()?;
                take_charge(driver.ports_mut(), &name);
                // Dropping the driver closes the ports and completes their recordings.
                let element = driver.run(keeper).node;
                with_flows(ElementState::of(&element, clock.now()), |first| {
                    Some(element.flows(first))
                })
            });
            running.threads.push(thread.map_err(refused)?);
            running.begins.push(begin);
            let asked = Arc::default();
            running.observer.cores.push(Core { handle, seen, asked, stillness });
        }
        Ok(running)
    }

    /// Lets all threads begin.
    pub fn begin(&self) {
        for begin in &self.begins {
            // A thread that has died is told of where it is joined.
            let _ = begin.send(());
        }
    }

    /// Tells all threads to end, and does not wait for them.
    pub fn stop(&self) {
        for core in &self.observer.cores {
            core.handle.stop();
        }
    }

    /// An observer of this pair.
    pub fn observer(&self) -> Observer<E> {
        self.observer.clone()
    }

    /// Waits for the end of all threads, which were told to [stop](Running::stop), recordings
    /// included, and returns the pair's last state.
    ///
    /// # Errors
    /// If one of its threads had died.
    pub fn end(self) -> Result<PairStatus, ()> {
        let ended: Vec<_> = self.threads.into_iter().map(JoinHandle::join).collect();
        let states = ended.into_iter().zip(&self.observer.cores).map(|(state, core)| {
            let state = state.map_err(|_| ())?.ok_or(())?;
            Ok(core.with(&self.observer.name, state))
        });
        PairStatus::of_cores(states.collect::<Result<_, ()>>()?).ok_or(())
    }
}

/// Takes charge of the ports of pair `name`.
fn take_charge(ports: &mut [BoxPort], name: &str) {
    for port in ports {
        if let Err(error) = port.take_charge() {
            let text = format!("port {}: {error}", port.capabilities().name);
            journal::of_pair(Level::Warning, name, &text);
        }
    }
}

/// Calls its function when dropped, even by a panic.
struct WhenOver<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for WhenOver<F> {
    fn drop(&mut self) {
        if let Some(when_over) = self.0.take() {
            when_over();
        }
    }
}

impl<E: Element> Observer<E> {
    /// The pair's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if its threads complete turns.
    pub fn is_turning(&self) -> bool {
        self.cores.iter().all(Core::is_turning)
    }

    /// Number of its threads.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Has the first of its threads attend to its links.
    pub fn call_hook(&self) {
        self.cores.first().into_iter().for_each(|core| core.handle.call_hook());
    }

    /// Where each of its threads finds the request to hold still, and what makes it look.
    pub fn threads(&self) -> impl Iterator<Item = (Arc<Asked>, impl Fn())> {
        self.cores.iter().map(|core| {
            let handle = core.handle.clone();
            (Arc::clone(&core.stillness), move || handle.call_hook())
        })
    }

    /// Applies `change` to the element of each core. The elements are alike, so all apply it or
    /// none.
    ///
    /// # Errors
    /// The reason for a refusal.
    pub fn apply(&self, change: &E::Change) -> Result<(), String> {
        for core in &self.cores {
            let change = change.clone();
            let applied = core.handle.ask(|_, element: &mut E| element.apply(change));
            applied.unwrap_or_else(|stopped| Err(stopped.to_string()))?;
        }
        Ok(())
    }

    /// Starts or stops draining. `None` if the pair has no flows, or has stopped.
    pub fn set_draining(&self, draining: bool) -> Option<()> {
        let told = |core: &Core<E>| {
            let told =
                core.handle.ask(move |now, element: &mut E| element.set_draining(now, draining));
            told.is_ok_and(|has_flows| has_flows).then_some(())
        };
        self.cores.iter().map(told).collect()
    }

    /// The pair's state without flows, of which there may be many; `None` once it has stopped.
    pub fn brief(&self) -> Option<PairStatus> {
        let states = self.cores.iter().map(|core| Some(core.with(&self.name, core.state()?)));
        PairStatus::of_cores(states.collect::<Option<_>>()?)
    }

    /// The pair's state; `None` once it has stopped.
    pub fn status(&self) -> Option<PairStatus> {
        let states = self.cores.iter().map(|core| {
            let flows =
                |first| core.handle.ask(move |_, element: &mut E| element.flows(first)).ok();
            Some(core.with(&self.name, with_flows(core.state()?, flows)?))
        });
        PairStatus::of_cores(states.collect::<Option<_>>()?)
    }
}

impl<E: Element> Core<E> {
    fn is_turning(&self) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = match asked.take() {
            Some(answered) => answered,
            None => {
                let (answer, answered) = sync_channel(1);
                let asked = self.handle.request(move |_, _| {
                    // The receiver may be gone.
                    let _ = answer.send(());
                });
                if asked.is_err() {
                    return false;
                }
                answered
            }
        };
        let answer = answered.recv_timeout(TURNS_WITHIN);
        if answer == Err(RecvTimeoutError::Timeout) {
            *asked = Some(answered);
        }
        answer.is_ok()
    }

    /// Reads the element's state, without flows.
    fn state(&self) -> Option<ElementState> {
        self.handle.ask(|now, element: &mut E| ElementState::of(element, now)).ok()
    }

    fn with(&self, pair: &str, state: ElementState) -> PairStatus {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        PairStatus {
            name: pair.to_string(),
            ports: seen.ports,
            frame_loop: seen.frame_loop,
            accelerator: state.accelerator,
            responders: state.responders,
            transport: state.transport,
            read_ahead: state.read_ahead,
            fibre: state.fibre,
            carrier: None,
            cores: seen.core.into_iter().collect(),
        }
    }
}

/// Adds an accelerator's flows. The thread that moves frames copies a bounded number per request;
/// this thread formats them. A flow that is created or removed meanwhile may be missing.
fn with_flows(
    mut state: ElementState,
    flows: impl Fn(u32) -> Option<Vec<(u32, FlowStatus)>>,
) -> Option<ElementState> {
    if let Some(accelerator) = &mut state.accelerator {
        accelerator.flows = in_parts(flows)?.iter().map(Flow::of).collect();
    }
    Some(state)
}

/// Collects all items through `from`, which returns those in the slots from its argument on, with
/// their slots, at most [`FLOWS_AT_ONCE`] per call.
fn in_parts<T>(from: impl Fn(u32) -> Option<Vec<(u32, T)>>) -> Option<Vec<T>> {
    let mut all = Vec::new();
    let mut first = Some(0);
    while let Some(slot) = first {
        let part = from(slot)?;
        let is_last = part.len() < FLOWS_AT_ONCE;
        first = part.last().filter(|_| !is_last).and_then(|(slot, _)| slot.checked_add(1));
        all.extend(part.into_iter().map(|(_, one)| one));
    }
    Some(all)
}

/// Tasks of a core's thread other than moving frames.
struct Keeper {
    pair: String,
    /// The core's number, processors and counters.
    core: CoreStatus,
    is_shared: bool,
    /// Warnings about other boxes and paths that were last reported.
    told: Vec<String>,
    sessions: SessionNews,
    watches: Vec<Watch>,
    rates_since: Moment,
    /// Version of the preferred QPs that the ports were last given.
    preferred: u64,
    flows_told: FlowsTold,
    seen: Arc<Mutex<Seen>>,
    stillness: Arc<Asked>,
    devices: Option<Attendant>,
}

/// State that is kept about a port.
struct Watch {
    side: String,
    name: PortName,
    link: Option<LinkState>,
    link_ups: u64,
    /// A frame that is too long was reported.
    told_too_long: bool,
    /// A frame that cannot be split was reported.
    told_not_splittable: bool,
    /// Frames that the port refused as too long without counting them.
    refused_too_long: u64,
    complaints: Complaints,
    /// Counters when rates were last computed.
    then: PortCounters,
    rates: Rates,
}

impl Watch {
    fn new(side: String, name: PortName) -> Self {
        Watch {
            side,
            name,
            link: None,
            link_ups: 0,
            told_too_long: false,
            told_not_splittable: false,
            refused_too_long: 0,
            complaints: Complaints::default(),
            then: PortCounters::default(),
            rates: Rates::default(),
        }
    }

    /// A line about a change of the link, if it changed.
    fn link_news(&mut self, port: &BoxPort, link_ups: u64) -> Option<String> {
        let link = port.link_state();
        let (before, ups) = (self.link.replace(link), link_ups - self.link_ups);
        self.link_ups = link_ups;
        let not_connected = match &self.name {
            PortName::Memif { is_master: true, .. } => Some("no slave has connected"),
            PortName::Memif { is_master: false, .. } => Some("no master listens at this path"),
            _ => None,
        };
        let why = || {
            let why = port.last_disconnect().or(not_connected);
            why.map_or_else(String::new, |why| format!(" ({why})"))
        };
        match (before, link) {
            (Some(LinkState::Up), LinkState::Up) if ups > 0 => {
                Some("was down for a moment".to_string())
            }
            (Some(before), now) if before == now => None,
            (_, LinkState::Up) => Some("is up".to_string()),
            (None, LinkState::Down) => Some(format!("is down{}; waiting for it", why())),
            (_, LinkState::Down) => Some(format!("went down{}", why())),
        }
    }

    /// The first time that a frame is too long, a line about it.
    fn too_long_news(&mut self, counters: &PortCounters) -> Option<String> {
        let came = counters.rx_drops.get(DropReason::FrameTooLong);
        let went = counters.tx_drops.get(DropReason::FrameTooLong) + self.refused_too_long;
        if self.told_too_long || came + went == 0 {
            return None;
        }
        self.told_too_long = true;
        let (limit, cure) = match (mtu(&self.name), self.name.interface()) {
            _ if went == 0 => (
                format!("the box's limit of {} bytes", self.name.frame_bytes_max()),
                "lower the hosts' MTU".to_string(),
            ),
            (Some(mtu), Some(interface)) => (
                format!("its MTU of {mtu} allows"),
                format!(
                    "raise it to the hosts' MTU, as with 'ip link set dev {interface} mtu 9000', \
                     or lower theirs"
                ),
            ),
            _ => ("its peer accepts".to_string(), "lower the hosts' MTU".to_string()),
        };
        Some(format!(
            "a frame is longer than {limit}; such frames are dropped and counted as \
             frame_too_long: {cure}"
        ))
    }

    /// The first time that a frame cannot be split, a line about it.
    fn not_splittable_news(&mut self, port: &BoxPort) -> Option<String> {
        let dropped = port.xdp_counters()?.rx_not_splittable;
        if dropped == 0 || std::mem::replace(&mut self.told_not_splittable, true) {
            return None;
        }
        Some(
            "a frame exceeds the MTU and is not TCP: a host on this machine left its segmentation \
             to a device; such frames are dropped and counted as not_splittable: run 'ethtool -K \
             eth0 tx-udp-segmentation off' on that host"
                .to_string(),
        )
    }

    fn status(&self, port: &BoxPort, counters: &PortCounters) -> PortStatus {
        let drops = |drops: &longhaul_port::Drops| {
            named(drops.iter().map(|(reason, n)| (reason.name(), n)))
        };
        let mut status = PortStatus {
            side: self.side.clone(),
            port: self.name.to_string(),
            manner: port.manner(),
            link_is_up: port.link_state() == LinkState::Up,
            link_ups: counters.link_ups,
            rx_frames: counters.rx_frames,
            rx_bytes: counters.rx_bytes,
            tx_frames: counters.tx_frames,
            tx_bytes: counters.tx_bytes,
            rates: self.rates,
            rx_drops: drops(&counters.rx_drops),
            tx_drops: drops(&counters.tx_drops),
            peer_violations: counters.peer_violations,
            other: Named::new(),
        };
        let too_long = DropReason::FrameTooLong.name().to_string();
        *status.tx_drops.entry(too_long).or_default() += self.refused_too_long;
        if let Some(netdev) = port.netdev_counters() {
            NETDEV.add(&mut status, netdev.values());
        }
        if let Some(xdp) = port.xdp_counters() {
            XDP.add(&mut status, xdp.values());
        }
        #[cfg(feature = "dpdk")]
        if let Some(dpdk) = port.dpdk_counters() {
            DPDK.add(&mut status, dpdk.values());
        }
        if let Some(foreign) = port.foreign() {
            status.rx_drops.insert("foreign".to_string(), foreign);
        }
        status
    }
}

impl Keeper {
    /// Has the ports serve known flows first, if these have changed.
    fn prefer(&mut self, element: &mut impl Element, ports: &mut [BoxPort]) {
        let Some(sides) = element.preferred(&mut self.preferred) else { return };
        for ((watch, port), qps) in self.watches.iter().zip(ports).zip(&sides) {
            if let Err(error) = port.prefer(qps) {
                let text = format!(
                    "{} port {} does not serve known flows first: {error}",
                    watch.side, watch.name
                );
                journal::of_pair(Level::Warning, &self.pair, &text);
            }
        }
    }

    fn core_status(&self, ports: &[BoxPort], counters: &DriverCounters) -> CoreStatus {
        let mut status = CoreStatus {
            received_frames: ports.iter().map(|port| port.counters().rx_frames).sum(),
            turns: counters.turns,
            sleeps: counters.sleeps,
            ..self.core.clone()
        };
        for handed_over in ports.iter().filter_map(BoxPort::handed_over) {
            status.add(handed_over);
        }
        status
    }
}

impl<E: Element> Hook<E, BoxPort> for Keeper {
    fn attend(
        &mut self,
        now: Moment,
        element: &mut E,
        ports: &mut [BoxPort],
        counters: &DriverCounters,
    ) {
        if let Some(devices) = &mut self.devices {
            devices.attend(ports);
        }
        self.stillness.attend(element.owes(), ports);
        self.prefer(element, ports);
        let elapsed = now.since(self.rates_since);
        let has_rates = elapsed >= RATE_INTERVAL;
        let mut state = Vec::with_capacity(ports.len());
        for (watch, port) in self.watches.iter_mut().zip(&*ports) {
            let counted = port.counters();
            let news = [
                watch.link_news(port, counted.link_ups),
                watch.too_long_news(&counted),
                watch.not_splittable_news(port),
            ];
            // All cores see the same link: the first core reports it.
            let news = news.into_iter().skip(usize::from(self.core.core > 0));
            for text in news.flatten() {
                let level =
                    if port.link_state() == LinkState::Up { Level::Info } else { Level::Warning };
                let text = format!("{} port {} {text}", watch.side, watch.name);
                journal::of_pair(level, &self.pair, &text);
            }
            if has_rates {
                watch.rates = Rates::between(&watch.then, &counted, elapsed);
                watch.then = counted;
            }
            state.push(watch.status(port, &counted));
        }
        if has_rates {
            self.rates_since = now;
            let transport = element.transport(now);
            let sessions = transport.iter().flat_map(|state| self.sessions.since_last(now, state));
            for (level, text) in sessions {
                let text = match self.is_shared {
                    true => format!("core {}: {text}", self.core.core),
                    false => text,
                };
                journal::of_pair(level, &self.pair, &text);
            }
            let news = transport.map(|state| state.news()).unwrap_or_default();
            for text in news.iter().filter(|text| !self.told.contains(text)) {
                journal::of_pair(Level::Warning, &self.pair, text);
            }
            if !news.is_empty() {
                self.told = news;
            }
            for text in element.news_of_flows(&mut self.flows_told) {
                journal::of_pair(Level::Warning, &self.pair, &text);
            }
        }
        let core = self.is_shared.then(|| self.core_status(ports, counters));
        let seen = Seen { ports: state, frame_loop: LoopStatus::of(counters), core };
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    fn port_error(&mut self, side: Side, error: PortError) {
        let Some(watch) = self.watches.get_mut(side) else { return };
        if matches!(error, PortError::FrameTooLong { .. }) {
            watch.refused_too_long += 1;
            return;
        }
        if let Some(text) =
            watch.complaints.worth_telling(std::time::Instant::now(), error.to_string())
        {
            let text = format!("{} port {}: {text}", watch.side, watch.name);
            journal::of_pair(Level::Warning, &self.pair, &text);
        }
    }
}

/// Limits the journal lines of recurring errors.
#[derive(Default)]
struct Complaints {
    last: Option<(std::time::Instant, String)>,
    untold: u64,
}

impl Complaints {
    fn worth_telling(&mut self, now: std::time::Instant, text: String) -> Option<String> {
        if let Some((at, before)) = &self.last {
            let patience = if *before == text { SAME_ERROR_AGAIN } else { OTHER_ERROR_AFTER };
            if now.duration_since(*at).as_nanos() < u128::from(patience.as_ns()) {
                self.untold += 1;
                return None;
            }
        }
        let untold = std::mem::take(&mut self.untold);
        let told = if untold > 0 {
            format!("{text} ({untold} more since the last line)")
        } else {
            text.clone()
        };
        self.last = Some((now, text));
        Some(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_frame_that_is_too_long_is_told_once_with_the_limit_that_it_met() {
        let told = |drops: fn(&mut PortCounters) -> &mut longhaul_port::Drops, name: &str| {
            let mut counters = PortCounters::default();
            drops(&mut counters).count(DropReason::FrameTooLong);
            let mut watch = Watch::new("a".to_string(), name.parse().unwrap());
            let text = watch.too_long_news(&counters).unwrap();
            assert_eq!(watch.too_long_news(&counters), None);
            text
        };
        let came = told(|counters| &mut counters.rx_drops, "lo");
        assert!(came.contains("16384 bytes") && !came.contains("its MTU"), "{came}");
        let went = told(|counters| &mut counters.tx_drops, "lo");
        assert!(went.contains("its MTU of ") && went.contains("dev lo mtu"), "{went}");
        let came = told(|counters| &mut counters.rx_drops, "memif:/x");
        assert!(came.contains("9238 bytes"), "{came}");
    }

    #[test]
    fn many_flows_are_asked_for_a_few_at_a_time() {
        for count in
            [0, 1, FLOWS_AT_ONCE - 1, FLOWS_AT_ONCE, FLOWS_AT_ONCE + 1, 3 * FLOWS_AT_ONCE + 7]
        {
            // Every third slot is occupied.
            let slots = || (0..).step_by(3).take(count).map(|slot: u32| (slot, slot / 3));
            let from =
                |first| slots().filter(|(slot, _)| *slot >= first).take(FLOWS_AT_ONCE).collect();
            assert_eq!(in_parts(|first| Some(from(first))), Some((0..count as u32).collect()));
        }
        let stops = |first| {
            (first == 0).then(|| (0..FLOWS_AT_ONCE as u32).map(|slot| (slot, ())).collect())
        };
        assert_eq!(in_parts(stops), None);
    }

    #[test]
    fn an_error_that_stays_is_told_once_a_minute() {
        let mut complaints = Complaints::default();
        let start = Instant::now();
        let mut at = |ms: u64, text: &str| {
            complaints.worth_telling(start + Duration::from_millis(ms), text.to_string())
        };
        assert_eq!(at(0, "down").as_deref(), Some("down"));
        assert_eq!(at(1, "down"), None);
        assert_eq!(at(2, "broken"), None, "one line a second");
        assert_eq!(at(1002, "broken").as_deref(), Some("broken (2 more since the last line)"));
        assert_eq!(at(61_001, "broken"), None);
        assert_eq!(at(61_002, "broken").as_deref(), Some("broken (1 more since the last line)"));
    }
}
