//! One pair of ports with what is between them, on a thread of its own, or on one for each of the
//! cores that share it.

use crate::cores::Places;
use crate::element::{Element, FLOWS_AT_ONCE, FlowsTold};
use crate::error::Error;
use crate::journal::{self, Level};
use crate::plan::{BoxKind, Pair};
use crate::port::{BoxPort, PortName, mtu};
use crate::state::{Flow, Named, ReadAheadState, TransportState, named};
use crate::status::{
    AcceleratorState, CoreStatus, FibreState, LoopStatus, PairStatus, PortStatus, Rates,
};
use longhaul_accel::FlowStatus;
use longhaul_af_xdp::XdpCounters;
use longhaul_host::placement::{list_text, run_on};
use longhaul_host::{
    Clock, Driver, DriverConfig, DriverCounters, Handle, Hook, MalformedFrames, TurnConfig,
};
use longhaul_node::Side;
use longhaul_port::{DropReason, LinkState, Port, PortCounters, PortError};
use longhaul_units::{Duration as Span, Instant as Moment};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How soon a link that goes down is noticed, and how old the ports' state may be that a status
/// shows.
const HOOK_INTERVAL: Span = Span::from_ms(50);

/// What rates are averaged over.
const RATE_INTERVAL: Span = Span::from_ms(1000);

/// An error of a port that stays is told again after this long, and another one not before the
/// shorter time.
const SAME_ERROR_AGAIN: Span = Span::from_ms(60_000);
const OTHER_ERROR_AFTER: Span = Span::from_ms(1000);

/// A thread that has not come round for this long is stuck.
const TURNS_WITHIN: Duration = Duration::from_secs(1);

/// A pair at work.
pub struct Running<E> {
    /// Of each core.
    threads: Vec<JoinHandle<Option<ElementState>>>,
    observer: Observer<E>,
}

/// Sees a pair from any thread.
pub struct Observer<E> {
    name: String,
    cores: Vec<Core<E>>,
}

/// Sees one of the cores that share a pair's ports.
struct Core<E> {
    handle: Handle<E>,
    seen: Arc<Mutex<Seen>>,
    /// The last question whether the thread turns, while it is not answered: more than one would
    /// pile up.
    asked: Arc<Mutex<Option<Receiver<()>>>>,
}

impl<E> Clone for Observer<E> {
    fn clone(&self) -> Self {
        let core = |core: &Core<E>| Core {
            handle: core.handle.clone(),
            seen: Arc::clone(&core.seen),
            asked: Arc::clone(&core.asked),
        };
        Observer { name: self.name.clone(), cores: self.cores.iter().map(core).collect() }
    }
}

/// What the element says of itself.
struct ElementState {
    accelerator: Option<AcceleratorState>,
    responders: Option<AcceleratorState>,
    transport: Option<TransportState>,
    read_ahead: Option<ReadAheadState>,
    fibre: Option<FibreState>,
}

impl ElementState {
    /// Without flows.
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

/// What a core's thread last said of its ports and of itself.
#[derive(Clone, Default)]
struct Seen {
    ports: Vec<PortStatus>,
    frame_loop: LoopStatus,
    /// Where several share the ports.
    core: Option<CoreStatus>,
}

impl<E: Element> Running<E> {
    /// Starts a thread for each core, which has an element and a queue of each port. `when_over` is
    /// called on each when it ends, however it ends.
    pub fn start<S: BoxKind>(
        pair: &Pair<S>,
        cores: Vec<(E, Vec<BoxPort>)>,
        places: &Places,
        clock: Clock,
        when_over: impl FnOnce() + Clone + Send + 'static,
    ) -> Result<Self, Error> {
        let mut running = Running {
            threads: Vec::new(),
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
            let (driver, handle) = Driver::new(element, ports, clock, config).map_err(refused)?;
            let seen = Arc::new(Mutex::new(Seen::default()));
            let processors = place.as_deref().map(list_text);
            let keeper = Keeper {
                pair: pair.name.clone(),
                core: CoreStatus { core: number, processors, ..CoreStatus::default() },
                is_shared,
                told: Vec::new(),
                watches: pair
                    .named_ports(E::SIDES)
                    .map(|(side, port)| Watch::new(side, port.clone()))
                    .collect(),
                rates_since: clock.now(),
                preferred: 0,
                flows_told: FlowsTold::default(),
                seen: Arc::clone(&seen),
            };
            let over = WhenOver(Some(when_over.clone()));
            let (name, place) = (pair.name.clone(), place.clone());
            let thread = Builder::new().name(format!("pair {name}")).spawn(move || {
                let _over = over;
                if let Some(Err(error)) = place.map(|processors| run_on(&processors)) {
                    let text = format!("core {number} runs anywhere: {error}");
                    journal::of_pair(Level::Warning, &name, &text);
                }
                // The ports end with it, and their recordings are complete.
                let element = driver.run(keeper).node;
                with_flows(ElementState::of(&element, clock.now()), |first| {
                    Some(element.flows(first))
                })
            });
            running.threads.push(thread.map_err(refused)?);
            running.observer.cores.push(Core { handle, seen, asked: Arc::default() });
        }
        Ok(running)
    }

    /// What sees it.
    pub fn observer(&self) -> Observer<E> {
        self.observer.clone()
    }

    /// Ends it, recordings included: its last state.
    ///
    /// # Errors
    /// When a thread of it had died.
    pub fn end(self) -> Result<PairStatus, ()> {
        for core in &self.observer.cores {
            core.handle.stop();
        }
        let ended: Vec<_> = self.threads.into_iter().map(JoinHandle::join).collect();
        let states = ended.into_iter().zip(&self.observer.cores).map(|(state, core)| {
            let state = state.map_err(|_| ())?.ok_or(())?;
            Ok(core.with(&self.observer.name, state))
        });
        PairStatus::of_cores(states.collect::<Result<_, ()>>()?).ok_or(())
    }
}

/// Calls its function when dropped: also when the thread panics.
struct WhenOver<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for WhenOver<F> {
    fn drop(&mut self) {
        if let Some(when_over) = self.0.take() {
            when_over();
        }
    }
}

impl<E: Element> Observer<E> {
    /// What its pair is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True when its threads come round.
    pub fn is_turning(&self) -> bool {
        self.cores.iter().all(Core::is_turning)
    }

    /// Has the element of each core go by `change`. They are alike, so that all of them do, or
    /// none.
    ///
    /// # Errors
    /// Why it does not.
    pub fn apply(&self, change: &E::Change) -> Result<(), String> {
        for core in &self.cores {
            let change = change.clone();
            let applied = core.handle.ask(|_, element: &mut E| element.apply(change));
            applied.unwrap_or_else(|stopped| Err(stopped.to_string()))?;
        }
        Ok(())
    }

    /// Lets its flows go, or takes them in again. `None` when it has none, or has stopped.
    pub fn set_draining(&self, draining: bool) -> Option<()> {
        let told = |core: &Core<E>| {
            let told =
                core.handle.ask(move |now, element: &mut E| element.set_draining(now, draining));
            told.is_ok_and(|has_flows| has_flows).then_some(())
        };
        self.cores.iter().map(told).collect()
    }

    /// Its state without flows, which may be many; `None` once it has stopped.
    pub fn brief(&self) -> Option<PairStatus> {
        let states = self.cores.iter().map(|core| Some(core.with(&self.name, core.state()?)));
        PairStatus::of_cores(states.collect::<Option<_>>()?)
    }

    /// Its state; `None` once it has stopped.
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
                    // Nobody may wait for it any more.
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

    /// Without flows.
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
            cores: seen.core.into_iter().collect(),
        }
    }
}

/// Adds an accelerator's flows. The thread that moves frames copies a few of them each time that it
/// is asked; they are put into words here. A flow that comes or goes meanwhile may be left out.
fn with_flows(
    mut state: ElementState,
    flows: impl Fn(u32) -> Option<Vec<(u32, FlowStatus)>>,
) -> Option<ElementState> {
    if let Some(accelerator) = &mut state.accelerator {
        accelerator.flows = in_parts(flows)?.iter().map(Flow::of).collect();
    }
    Some(state)
}

/// All that there is, of which `from` gives what is in the slots from one on, with them,
/// [`FLOWS_AT_ONCE`] at most at once.
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

/// What a core's thread does beside moving frames.
struct Keeper {
    pair: String,
    /// Which core it is of.
    core: CoreStatus,
    is_shared: bool,
    /// What is not as it should be between this box and others, as was told last.
    told: Vec<String>,
    watches: Vec<Watch>,
    rates_since: Moment,
    /// Changes of flows that ports were last told of.
    preferred: u64,
    flows_told: FlowsTold,
    seen: Arc<Mutex<Seen>>,
}

/// What is remembered of a port.
struct Watch {
    side: String,
    name: PortName,
    link: Option<LinkState>,
    link_ups: u64,
    /// That a frame did not fit was told.
    told_too_long: bool,
    /// That a frame cannot be split was told.
    told_not_splittable: bool,
    /// Frames that the port refused without counting them.
    refused_too_long: u64,
    complaints: Complaints,
    /// When rates were last computed.
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

    /// The line that says what became of the link, if anything did.
    fn link_news(&mut self, port: &BoxPort, link_ups: u64) -> Option<String> {
        let link = port.link_state();
        let (before, ups) = (self.link.replace(link), link_ups - self.link_ups);
        self.link_ups = link_ups;
        let why = || port.last_disconnect().map_or_else(String::new, |why| format!(" ({why})"));
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

    /// The line that says that frames do not fit, once.
    fn too_long_news(&mut self, counters: &PortCounters) -> Option<String> {
        let came = counters.rx_drops.get(DropReason::FrameTooLong);
        let went = counters.tx_drops.get(DropReason::FrameTooLong) + self.refused_too_long;
        if self.told_too_long || came + went == 0 {
            return None;
        }
        self.told_too_long = true;
        let (limit, cure) = match (mtu(&self.name), self.name.interface()) {
            _ if went == 0 => (
                format!("the {} bytes that a box takes in", self.name.frame_bytes_max()),
                "lower the hosts' MTU".to_string(),
            ),
            (Some(mtu), Some(interface)) => (
                format!("its MTU of {mtu} allows"),
                format!(
                    "raise it to the hosts' MTU with 'ip link set dev {interface} mtu 9000' or so, \
                     or lower theirs"
                ),
            ),
            _ => ("what its peer takes".to_string(), "lower the hosts' MTU".to_string()),
        };
        Some(format!(
            "a frame is longer than {limit}; it and its like are dropped and counted as \
             frame_too_long: {cure}"
        ))
    }

    /// The line that says that senders on this machine leave too much to do, once.
    fn not_splittable_news(&mut self, port: &BoxPort) -> Option<String> {
        let dropped = port.xdp_counters()?.rx_not_splittable;
        if dropped == 0 || std::mem::replace(&mut self.told_not_splittable, true) {
            return None;
        }
        Some(
            "a frame came that is longer than the MTU and no TCP, left by a host on this machine \
             for a device to split; it and its like are dropped and counted as not_splittable: \
             'ethtool -K eth0 tx-udp-segmentation off' at that host"
                .to_string(),
        )
    }

    fn status(&self, port: &BoxPort, counters: &PortCounters) -> PortStatus {
        let drops = |drops: &longhaul_port::Drops| {
            named(drops.iter().map(|(reason, n)| (reason.name(), n)))
        };
        let (mut rx_drops, mut tx_drops) = (drops(&counters.rx_drops), drops(&counters.tx_drops));
        *tx_drops.entry(DropReason::FrameTooLong.name().to_string()).or_default() +=
            self.refused_too_long;
        let mut other = Named::new();
        if let Some(netdev) = port.netdev_counters() {
            rx_drops.insert("buffer_full".to_string(), netdev.rx_buffer_full);
            rx_drops.insert("not_splittable".to_string(), netdev.rx_not_splittable);
            tx_drops.insert("refused".to_string(), netdev.tx_refused);
            tx_drops.insert("queue_full".to_string(), netdev.tx_queue_full);
            other = named(
                [
                    ("rx_buffer_full_known", netdev.rx_buffer_full_preferred),
                    ("rx_checksums_filled", netdev.rx_checksums_filled),
                    ("rx_split", netdev.rx_split),
                    ("rx_tags_restored", netdev.rx_tags_restored),
                    ("tx_blocked", netdev.tx_blocked),
                    ("detached", netdev.detached),
                    ("reattached", netdev.reattached),
                ]
                .into_iter(),
            );
        }
        if let Some(xdp) = port.xdp_counters() {
            other = xdp_counters(&xdp, &mut rx_drops, &mut tx_drops);
        }
        #[cfg(feature = "dpdk")]
        if let Some(dpdk) = port.dpdk_counters() {
            rx_drops.insert("device_full".to_string(), dpdk.rx_missed);
            rx_drops.insert("device_error".to_string(), dpdk.rx_errors);
            rx_drops.insert("no_buffer".to_string(), dpdk.rx_no_buffer);
            tx_drops.insert("device_error".to_string(), dpdk.tx_errors);
            other = named(
                [
                    ("rx_bad_checksum", dpdk.rx_bad_checksum),
                    ("rx_gathered", dpdk.rx_gathered),
                    ("rx_not_lent", dpdk.rx_not_lent),
                    ("tx_by_reference", dpdk.tx_by_reference),
                    ("tx_no_buffer", dpdk.tx_no_buffer),
                    ("tx_stalls", dpdk.tx_stalls),
                    ("restarts", dpdk.restarts),
                ]
                .into_iter(),
            );
        }
        if let Some(foreign) = port.foreign() {
            rx_drops.insert("foreign".to_string(), foreign);
        }
        PortStatus {
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
            rx_drops,
            tx_drops,
            peer_violations: counters.peer_violations,
            other,
        }
    }
}

/// Adds the drops of an AF_XDP port to the others, and returns what it counts beside them.
fn xdp_counters(xdp: &XdpCounters, rx_drops: &mut Named, tx_drops: &mut Named) -> Named {
    rx_drops.insert("ring_full".to_string(), xdp.rx_ring_full);
    rx_drops.insert("kernel".to_string(), xdp.rx_dropped);
    rx_drops.insert("not_splittable".to_string(), xdp.rx_not_splittable);
    tx_drops.insert("refused".to_string(), xdp.tx_refused);
    tx_drops.insert("queue_full".to_string(), xdp.tx_queue_full);
    named(
        [
            ("rx_checksums_filled", xdp.rx_checksums_filled),
            ("rx_split", xdp.rx_split),
            ("rx_gathered", xdp.rx_gathered),
            ("rx_no_buffer", xdp.rx_no_buffer),
            ("tx_blocked", xdp.tx_blocked),
            ("tx_stalls", xdp.tx_stalls),
            ("detached", xdp.detached),
            ("reattached", xdp.reattached),
        ]
        .into_iter(),
    )
}

impl Keeper {
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
        if let Some(sides) = element.preferred(&mut self.preferred) {
            for ((watch, port), qps) in self.watches.iter().zip(&mut *ports).zip(&sides) {
                if let Err(error) = port.prefer(qps) {
                    let text = format!(
                        "{} port {} does not serve known flows first: {error}",
                        watch.side, watch.name
                    );
                    journal::of_pair(Level::Warning, &self.pair, &text);
                }
            }
        }
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
            // The link is one: the first core tells of it.
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
            let news = element.transport(now).map(|state| state.news()).unwrap_or_default();
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

/// Keeps an error that is met over and over from filling the journal.
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
            format!("{text} ({untold} more since the last one told)")
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
            // Every third slot has one.
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
        assert_eq!(at(1002, "broken").as_deref(), Some("broken (2 more since the last one told)"));
        assert_eq!(at(61_001, "broken"), None);
        assert_eq!(
            at(61_002, "broken").as_deref(),
            Some("broken (1 more since the last one told)")
        );
    }
}
