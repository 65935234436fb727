//! The engine: one device, one port, one lock, and whoever has time to run them.
//!
//! The program's own calls drive the device. `poll_cq` returns what is there, and otherwise runs
//! one bounded turn (receive, time out, send) and looks again; posting sends within the call. Only
//! a program that does something else for a while (it computes, or blocks in a system call) is
//! relieved by the engine thread, see `engine_thread`. After a fork the child never touches the
//! parent's device.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::Duration as StdDuration;

use longhaul_cc::dcqcn::Dcqcn;
use longhaul_eswitch::COMM_ID_SLOT_SHIFT;
use longhaul_host::{Clock, WakeUp};
use longhaul_memif::{MemifConfig, MemifPort};
use longhaul_node::Node;
use longhaul_port::{LinkState, Port};
use longhaul_rnic::{Completion, Config, CqId, Mtu, QpAttr, QpInit, QpState, Rnic, SrqId, SrqInit};
use longhaul_udp::{UdpConfig, UdpPort, obtainable_receive_buffer, window_packets};
use longhaul_units::{BitRate, Duration, Instant, Psn, Qpn, Rng, SplitMix64};
use longhaul_wire::ROCEV2_PORT;

use crate::attach::{Attach, Line, Role};
use crate::counter_files::CounterFiles;
use crate::device_state::{AsyncEvent, AsyncSink, CqSinks, DeviceState, Driver, EngineCounters};
use crate::engine_thread;
use crate::error::RdmaError;
use crate::event_queue::EventQueue;
use crate::groups::takes_groups;
use crate::hand_over::HandOver;
use crate::memory::ProcessMemory;
use crate::segment::{OnSegment, open_interface, open_tap, segment_of};

/// Fruitless polls after which the program's thread gives way to others: two cores may hold three
/// busy processes.
const POLLS_BEFORE_YIELD: u32 = 16;
/// How long a process may wait for its turn on a shared core without its port losing rate.
const TURN_WAIT: Duration = Duration::from_ms(2);
/// Line rate that congestion control presumes of a port that is not paced.
const RATE_PRESUMED: BitRate = match BitRate::from_gbps(100) {
    Some(rate) => rate,
    None => unreachable!(),
};
/// Receive buffer of a socket below which the user is told how to get a larger one, in bytes.
const RECEIVE_BUFFER_ENOUGH: usize = 4 << 20;
/// How often a process that ends tries for a lock, a millisecond apart.
const LAST_TRIES: u32 = 20;
/// How long the first user of the port waits for the link.
const LINK_WAIT: StdDuration = StdDuration::from_secs(2);

/// A port, and what one on a segment keeps besides.
type OpenPort = (Box<dyn Port>, Option<OnSegment>);

/// One software RNIC with its port, shared by everything in the process.
pub struct Engine {
    attach: Attach,
    clock: Clock,
    state: Mutex<DeviceState>,
    counter_files: Option<Mutex<CounterFiles>>,
    /// PSNs given out.
    psns: AtomicU64,
    /// Between the program's threads and the engine thread.
    pub(crate) hand_over: HandOver,
    /// Set in the child of a fork.
    forked: AtomicBool,
    stopping: AtomicBool,
    started: OnceLock<()>,
    me: Weak<Engine>,
}

/// Every engine of the process, for the fork handler to disown.
static ENGINES: Mutex<Vec<Weak<Engine>>> = Mutex::new(Vec::new());

impl Engine {
    /// A device as `attach` describes it. No descriptor of the port is opened and no thread is
    /// started before [`Engine::start`].
    ///
    /// # Safety
    /// As [`ProcessMemory::new`]: memory given to the device must stay mapped while it is
    /// registered.
    ///
    /// # Errors
    /// [`RdmaError::Io`] when the process is out of descriptors.
    pub unsafe fn new(attach: Attach) -> Result<Arc<Self>, RdmaError> {
        // Between two processes the one that ends first is no news.
        let farewell = match &attach.line {
            Line::Memif { socket, back_to_back: false, .. } => Some(format!(
                "host {}: the lab at {} ended the link",
                attach.host,
                socket.display()
            )),
            _ => None,
        };
        // SAFETY: passed on to the caller.
        let rnic = Rnic::new(rnic_config(&attach), unsafe { ProcessMemory::new() });
        let wake =
            WakeUp::new().map_err(|source| RdmaError::Io { operation: "eventfd", source })?;
        let counter_files =
            attach.counters.as_ref().and_then(|root| match CounterFiles::open(root, attach.rate) {
                Ok(files) => Some(Mutex::new(files)),
                // Another process of this device keeps them.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                Err(error) => {
                    eprintln!("longhaul: no counters below {}: {error}", root.display());
                    None
                }
            });
        let engine = Arc::new_cyclic(|me| Engine {
            attach,
            counter_files,
            clock: Clock::start(),
            state: Mutex::new(DeviceState::new(rnic, farewell)),
            psns: AtomicU64::new(0),
            hand_over: HandOver::new(wake),
            forked: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            started: OnceLock::new(),
            me: me.clone(),
        });
        disown_at_fork();
        if engine.counter_files.is_some() {
            finish_at_exit();
        }
        let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(Arc::downgrade(&engine));
        Ok(engine)
    }

    /// How the process was told to attach.
    #[must_use]
    pub fn attach(&self) -> &Attach {
        &self.attach
    }

    /// False in the child of a fork: the device belongs to the parent.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        !self.forked.load(Ordering::Relaxed)
    }

    /// Now, on the engine's clock.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// A PSN for a queue pair to start with, different from call to call and from run to run, so
    /// that packets of an earlier connection are not taken for its own. It is no secret.
    #[must_use]
    pub fn fresh_psn(&self) -> Psn {
        let count = self.psns.fetch_add(1, Ordering::Relaxed);
        let mut rng =
            SplitMix64::new(self.now().as_ps() ^ (u64::from(std::process::id()) << 40) ^ count);
        Psn::new(rng.next_u64() as u32)
    }

    #[inline]
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, DeviceState>, RdmaError> {
        if self.forked.load(Ordering::Relaxed) {
            return Err(RdmaError::Forked);
        }
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lock, unless somebody holds it.
    pub(crate) fn try_lock(&self) -> Result<Option<MutexGuard<'_, DeviceState>>, RdmaError> {
        if self.forked.load(Ordering::Relaxed) {
            return Err(RdmaError::Forked);
        }
        match self.state.try_lock() {
            Ok(state) => Ok(Some(state)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(Some(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => Ok(None),
        }
    }

    /// Attaches the port and starts the engine thread, once. Called by whatever first needs
    /// packets.
    ///
    /// A lab that does not answer is no error: the port stays down, one line on stderr says so, and
    /// queue pairs fail by their own retry budgets.
    ///
    /// # Errors
    /// [`RdmaError::Io`] when the thread cannot be started; [`RdmaError::Forked`].
    pub fn start(&self) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        if self.started.get().is_some() {
            return Ok(());
        }
        match self.open_port() {
            Ok((port, on_segment)) => {
                state.port = Some(port);
                state.on_segment = on_segment;
            }
            Err(error) => {
                state.complained = true;
                eprintln!("longhaul: host {}: {error}; the port is down", self.attach.host);
            }
        }
        let now = self.now();
        state.service(now);
        // Under the lock throughout: whoever comes second finds it done, or begins anew.
        if let Err(error) = engine_thread::start(self.me.clone()) {
            state.port = None;
            return Err(error);
        }
        let _ = self.started.set(());
        drop(state);
        if self.attach.is_in_lab() || self.attach.is_on_segment() {
            self.wait_for_link(LINK_WAIT)?;
        }
        Ok(())
    }

    fn open_port(&self) -> Result<OpenPort, Box<dyn std::error::Error>> {
        let attach = &self.attach;
        let mut name = format!("{}.{}", attach.host, std::process::id());
        while name.len() > 31 {
            name.pop();
        }
        let port: Box<dyn Port> = match &attach.line {
            Line::Tap { name, .. } => {
                let (port, on_segment) = open_tap(attach, name)?;
                return Ok((port, Some(on_segment)));
            }
            Line::Interface { name, network } => {
                let me = self.me.clone();
                let told = move || {
                    if let Some(engine) = me.upgrade() {
                        engine.hand_over.wake().wake();
                    }
                };
                let (port, on_segment) = open_interface(attach, name, *network, told)?;
                return Ok((port, Some(on_segment)));
            }
            Line::Memif { socket, id, role, .. } => {
                let config = MemifConfig {
                    ring_size_log2: ring_size_log2(attach),
                    ..MemifConfig::new(&name)
                };
                match role {
                    Role::Slave => Box::new(MemifPort::slave(socket, *id, config)?),
                    Role::Master => Box::new(MemifPort::master(socket, *id, config)?),
                }
            }
            Line::Udp { port } => {
                let bind = SocketAddr::new(attach.ip, *port);
                let config = UdpConfig { bind, ..UdpConfig::new(&name, attach.ip) };
                let port = UdpPort::bind(&config)?;
                if let Ok((_, receive)) = port.socket_buffers()
                    && receive / 2 < RECEIVE_BUFFER_ENOUGH
                {
                    eprintln!(
                        "longhaul: host {}: the system grants a receive buffer of {} KiB only, so \
                         few packets are kept under way; 'sysctl -w net.core.rmem_max={}' here and \
                         at the peers allows more",
                        attach.host,
                        receive >> 11,
                        config.receive_buffer_bytes,
                    );
                }
                Box::new(port)
            }
        };
        Ok((port, None))
    }

    /// Waits until the link is up; says so on stderr, once, when it does not come.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn wait_for_link(&self, limit: StdDuration) -> Result<LinkState, RdmaError> {
        let begun = std::time::Instant::now();
        loop {
            let mut state = self.lock()?;
            let now = self.now();
            let link =
                if state.link() == LinkState::Up { LinkState::Up } else { state.service(now) };
            if link == LinkState::Up {
                return Ok(link);
            }
            if state.complained || begun.elapsed() >= limit {
                self.complain(&mut state);
                return Ok(link);
            }
            drop(state);
            std::thread::sleep(StdDuration::from_millis(1));
        }
    }

    /// Says once why there is no link.
    fn complain(&self, state: &mut DeviceState) {
        if !std::mem::replace(&mut state.complained, true) {
            let reason = state.port.as_ref().and_then(|port| port.last_disconnect());
            let reason = reason.unwrap_or(match self.attach.is_on_segment() {
                true => "it has no carrier (is it up, and is anybody at its other end?)",
                false => "nobody answers (is the lab up?)",
            });
            let (host, line) = (&self.attach.host, &self.attach.line);
            eprintln!("longhaul: host {host}: no link at {line}: {reason}; the port is down");
        }
    }

    /// Waits for a link that is not up yet, as that of two processes that were started together may
    /// be.
    pub(crate) fn await_peer(&self) -> Result<(), RdmaError> {
        if self.link() == LinkState::Down {
            self.wait_for_link(LINK_WAIT)?;
        }
        Ok(())
    }

    /// The link: up or down once the port is attached, and what it will probably be before.
    #[must_use]
    pub fn link(&self) -> LinkState {
        if self.started.get().is_some()
            && let Ok(state) = self.lock()
        {
            return state.link();
        }
        match &self.attach.line {
            Line::Memif { socket, back_to_back: false, .. } if !socket.exists() => {}
            _ => return LinkState::Up,
        }
        if let Ok(mut state) = self.lock() {
            self.complain(&mut state);
        }
        LinkState::Down
    }

    /// Runs `operate` on the device, then sends what it caused.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    #[inline]
    pub fn with<R>(
        &self,
        operate: impl FnOnce(&mut Rnic<ProcessMemory>, Instant) -> R,
    ) -> Result<R, RdmaError> {
        let mut state = self.lock()?;
        let now = self.now();
        let result = operate(&mut state.rnic, now);
        state.send(now);
        self.rouse_thread(&state);
        Ok(result)
    }

    /// Makes a completion queue whose events go to `sinks`.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], [`RdmaError::Forked`].
    pub fn create_cq(&self, capacity: u32, sinks: CqSinks) -> Result<CqId, RdmaError> {
        let mut state = self.lock()?;
        let cq = state.rnic.create_cq(capacity)?;
        state.cqs.insert(cq, sinks);
        Ok(cq)
    }

    /// Changes where the events of a completion queue go.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn set_cq_sinks(&self, cq: CqId, sinks: CqSinks) -> Result<(), RdmaError> {
        self.lock()?.cqs.insert(cq, sinks);
        Ok(())
    }

    /// Changes where the events of a queue pair go.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn set_qp_sink(&self, qpn: Qpn, sink: AsyncSink) -> Result<(), RdmaError> {
        self.lock()?.qps.insert(qpn, sink);
        Ok(())
    }

    /// Tells `watcher`, for as long as it lives, when the link comes or goes. The first time that
    /// it comes is no news unless the program was told that there is none.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn watch_port(&self, watcher: &Arc<EventQueue<AsyncEvent>>) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        state.watchers.retain(|known| known.strong_count() > 0);
        state.watchers.push(Arc::downgrade(watcher));
        Ok(())
    }

    /// Makes a shared receive queue.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], [`RdmaError::Forked`].
    pub fn create_srq(&self, init: &SrqInit) -> Result<SrqId, RdmaError> {
        Ok(self.lock()?.rnic.create_srq(init)?)
    }

    /// Changes where the events of a shared receive queue go.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn set_srq_sink(&self, srq: SrqId, sink: AsyncSink) -> Result<(), RdmaError> {
        self.lock()?.srqs.insert(srq, sink);
        Ok(())
    }

    /// Gives a shared receive queue up. No event of it is queued after this returns.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`] while a queue pair uses it, [`RdmaError::Forked`].
    pub fn destroy_srq(&self, srq: SrqId) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        state.rnic.destroy_srq(srq)?;
        state.srqs.remove(&srq);
        Ok(())
    }

    /// Gives a completion queue up. No event of it is queued after this returns.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`] while a queue pair uses it, [`RdmaError::Forked`].
    pub fn destroy_cq(&self, cq: CqId) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        state.rnic.destroy_cq(cq)?;
        state.cqs.remove(&cq);
        Ok(())
    }

    /// Makes a queue pair whose asynchronous events go to `sink`; attaches the port if nobody has
    /// yet.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], [`RdmaError::Forked`], and those of [`Engine::start`].
    pub fn create_qp(&self, init: &QpInit, sink: AsyncSink) -> Result<Qpn, RdmaError> {
        self.start()?;
        let mut state = self.lock()?;
        let qpn = state.rnic.create_qp(init)?;
        state.qps.insert(qpn, sink);
        Ok(qpn)
    }

    /// Gives a queue pair up. No event of it is queued after this returns.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], [`RdmaError::Forked`].
    pub fn destroy_qp(&self, qpn: Qpn) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        let now = self.now();
        state.rnic.destroy_qp(qpn)?;
        state.qps.remove(&qpn);
        state.send(now);
        self.rouse_thread(&state);
        Ok(())
    }

    /// Changes a queue pair. A step to "ready to receive" waits (once, for a bounded time) for a
    /// link that is not up yet.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], [`RdmaError::Forked`], and those of [`Engine::resolve`] where it names
    /// an address.
    pub fn modify_qp(&self, qpn: Qpn, attr: &QpAttr) -> Result<(), RdmaError> {
        if attr.state == Some(QpState::ReadyToReceive) {
            self.await_peer()?;
        }
        if let Some(address) = &attr.address {
            self.resolve(address.destination_ip)?;
        }
        self.with(|rnic, now| rnic.modify_qp(now, qpn, attr))??;
        Ok(())
    }

    /// Runs `operate` on the device where nothing can come of it that has to be sent.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    #[inline]
    pub fn with_quietly<R>(
        &self,
        operate: impl FnOnce(&mut Rnic<ProcessMemory>) -> R,
    ) -> Result<R, RdmaError> {
        let mut state = self.lock()?;
        let result = operate(&mut state.rnic);
        state.dispatch();
        Ok(result)
    }

    /// A sleeping engine thread knows only the deadlines of the time when it fell asleep.
    #[inline]
    pub(crate) fn rouse_thread(&self, state: &DeviceState) {
        if let Some(until) = state.thread_sleeps_until
            && (state.out_of_room
                || state.frames_may_wait
                || state.rnic.poll_timeout().is_some_and(|due| due.at < until))
        {
            self.hand_over.wake().wake();
        }
    }

    /// Hands at most `max` completions of `cq` to `take`; runs one turn when there are none at
    /// first.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    #[inline]
    pub fn poll_cq(
        &self,
        cq: CqId,
        max: usize,
        mut take: impl FnMut(Completion),
    ) -> Result<usize, RdmaError> {
        let mut state = self.lock()?;
        self.hand_over.note_poll();
        let found = state.rnic.poll_cq(cq, max, &mut take);
        if found > 0 {
            state.empty_polls = 0;
            return Ok(found);
        }
        let worked = state.turn(self.now(), Driver::Program);
        self.rouse_thread(&state);
        let found = state.rnic.poll_cq(cq, max, &mut take);
        if found > 0 || worked > 0 {
            state.empty_polls = 0;
            return Ok(found);
        }
        state.empty_polls += 1;
        if state.empty_polls >= POLLS_BEFORE_YIELD {
            state.empty_polls = 0;
            drop(state);
            std::thread::yield_now();
        }
        Ok(0)
    }

    /// Runs one turn, for callers that are about to look for an event.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn turn(&self) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        state.turn(self.now(), Driver::Program);
        self.rouse_thread(&state);
        Ok(())
    }

    /// The program is about to wait for an event rather than to poll: the engine thread takes over
    /// now.
    #[inline]
    pub fn hand_over(&self) {
        self.hand_over.hand_over();
    }

    /// Brings the counter files up to date, when there are any and it is time.
    pub(crate) fn keep_counters(&self) {
        let Some(files) = &self.counter_files else { return };
        let Ok(mut files) = files.try_lock() else { return };
        let now = self.now();
        if files.is_due(now)
            && let Ok(state) = self.state.try_lock()
        {
            let (counters, link) = (state.rnic.counters().clone(), state.link());
            drop(state);
            // The files are for onlookers: a full disk is no reason to stop.
            let _ = files.write(now, &counters, link);
        }
    }

    /// Tells the peers of all connections that this is the end. Nobody will be there for their
    /// answers.
    fn end_connections(&self) {
        let Some(mut state) = self.lock_at_last() else { return };
        let now = self.now();
        let open: Vec<_> = state.rnic.cm().connections().map(|info| info.connection).collect();
        for connection in open {
            // It may have ended in this moment.
            let _ = state.rnic.cm().destroy(now, connection);
        }
        state.send(now);
    }

    /// The lock, for a process that ends: a thread that was stopped with it in its hands keeps it
    /// for ever, so that the wait for it has an end.
    fn lock_at_last(&self) -> Option<MutexGuard<'_, DeviceState>> {
        for _ in 0..LAST_TRIES {
            if let Some(state) = self.try_lock().ok()? {
                return Some(state);
            }
            std::thread::sleep(StdDuration::from_millis(1));
        }
        None
    }

    /// Writes the counter files a last time; the wait for their lock has an end too.
    fn keep_counters_at_last(&self) {
        let Some(files) = &self.counter_files else { return };
        for _ in 0..LAST_TRIES {
            if let (Ok(mut files), Ok(state)) = (files.try_lock(), self.state.try_lock()) {
                let _ = files.write(self.now(), state.rnic.counters(), state.link());
                return;
            }
            std::thread::sleep(StdDuration::from_millis(1));
        }
    }

    /// True once the engine thread should end.
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// What the engine has counted.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn counters(&self) -> Result<EngineCounters, RdmaError> {
        Ok(self.lock()?.counters)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        if !self.forked.load(Ordering::Relaxed) {
            self.keep_counters_at_last();
            self.hand_over.wake().wake();
        }
    }
}

/// How the connection manager behaves: quicker to repeat itself than kernels are, because the
/// longest path has a round trip of 0.2 s, and told apart from other processes of its host by the
/// slot. It refuses requests for services that nobody listens to here; the host collects the
/// refusals of all its processes.
fn connection_manager(attach: &Attach, path_mtu_max: Mtu, seed: u64) -> longhaul_cm::Config {
    longhaul_cm::Config {
        ca_guid: attach.guid(),
        response_timeout_code: 17,
        packet_lifetime_code: 16,
        retries_max: 7,
        path_mtu_code_max: path_mtu_max.code(),
        comm_id_prefix: attach.slot,
        comm_id_prefix_bits: (u32::BITS - COMM_ID_SLOT_SHIFT) as u8,
        seed,
        ..longhaul_cm::Config::default()
    }
}

/// Configuration of the RNIC of a device that attaches as `attach` says.
fn rnic_config(attach: &Attach) -> Config {
    let path_mtu_max = Mtu::from_code(attach.path_mtu.ilog2() as u8 - 7).unwrap_or(Mtu::B4096);
    let seed = u64::from(std::process::id()) ^ longhaul_seed();
    // A process that takes over another's numbers would be mistaken for it by peers that still
    // hold its connections.
    let skipped_qpns =
        (SplitMix64::new(seed).next_u64() % u64::from(attach.qpn_count() / 2)) as u32;
    let defaults = Config::new(attach.mac, attach.ip_addr());
    Config {
        window_packets: udp_window(attach, path_mtu_max).unwrap_or(defaults.window_packets),
        path_mtu_max,
        port_rate: attach.rate,
        // What the port could have sent while this process waited for its turn on a shared
        // core.
        port_burst_bytes: attach.rate.map_or(0, |rate| rate.bytes_in(TURN_WAIT)),
        qpn_first: attach.qpn_first() + skipped_qpns,
        qpn_count: attach.qpn_count() - skipped_qpns,
        rd_atomic_max: attach.read_depth,
        multicast_group_max: if takes_groups(attach) { defaults.multicast_group_max } else { 0 },
        seed,
        cm: connection_manager(attach, path_mtu_max, seed),
        dcqcn: attach
            .dcqcn
            .then(|| Dcqcn::nvidia(attach.rate.unwrap_or(RATE_PRESUMED)).ok())
            .flatten(),
        segment: segment_of(attach),
        // A socket sends from the port that it is bound to.
        udp_source_port: matches!(attach.line, Line::Udp { .. }).then_some(ROCEV2_PORT),
        ..defaults
    }
}

/// How many packets a queue pair may have under way over sockets: what a receive buffer like ours
/// takes, which the peer is presumed to have; `None` for other lines. Sent into a full buffer they
/// are lost, hundreds at a time.
fn udp_window(attach: &Attach, path_mtu_max: Mtu) -> Option<u32> {
    let Line::Udp { .. } = attach.line else { return None };
    let wanted = UdpConfig::new(&attach.host, attach.ip).receive_buffer_bytes;
    let granted = obtainable_receive_buffer(wanted).ok()?;
    Some(window_packets(granted, path_mtu_max.bytes() as usize))
}

/// Descriptors per ring, as a base-2 logarithm.
///
/// Between two processes the rings' buffers should stay in the caches: 512 times 4352 bytes, 2.2
/// MB. A lab serves several processes on few processors; 2048 frames are 7 ms at 10 Gbit/s, so that
/// it can go on while this process waits for its turn.
fn ring_size_log2(attach: &Attach) -> u8 {
    if attach.is_back_to_back() { 9 } else { 11 }
}

/// Something that differs from run to run, so that PSNs and communication ids do not repeat.
fn longhaul_seed() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

/// Has peers told and the counter files written once more when the process ends by itself: what a
/// kernel does for a program that ends with connections open.
fn finish_at_exit() {
    extern "C" fn at_exit() {
        if let Ok(engines) = ENGINES.try_lock() {
            for engine in engines.iter().filter_map(Weak::upgrade).filter(|engine| engine.is_ours())
            {
                engine.end_connections();
                engine.keep_counters_at_last();
                // The process ends without running destructors that wait for threads.
                std::mem::forget(engine);
            }
        }
    }
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        // SAFETY: the handler blocks on nothing and does not unwind.
        unsafe { libc::atexit(at_exit) };
    });
}

/// Makes the child of a fork disown the parent's engines: their locks may be held by threads that
/// do not exist there, and their rings belong to the parent.
fn disown_at_fork() {
    extern "C" fn in_child() {
        // Only this thread exists in the child. A lock held by another one at the moment of the
        // fork is held for ever; then the list is not reachable, but no engine was being made by
        // this thread.
        if let Ok(engines) = ENGINES.try_lock() {
            for engine in engines.iter().filter_map(Weak::upgrade) {
                engine.forked.store(true, Ordering::Relaxed);
                // The child must not run the parent's destructors: its sockets and memory are
                // shared.
                std::mem::forget(engine);
            }
        }
    }
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        // SAFETY: the handler takes no lock that blocks and allocates nothing.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::{ENV_HOST, ENV_IP, ENV_ROLE, ENV_SOCKET};

    fn engine(name: &str, host: &'static str) -> Arc<Engine> {
        let socket = std::env::temp_dir()
            .join(format!("longhaul-engine-{}-{name}.sock", std::process::id()));
        let attach = Attach::from_lookup(|variable| match variable {
            ENV_SOCKET => Some(socket.display().to_string()),
            ENV_IP => Some("10.77.0.1".to_owned()),
            ENV_ROLE => Some("master".to_owned()),
            ENV_HOST => Some(host.to_owned()),
            _ => None,
        });
        // SAFETY: no memory is ever registered.
        unsafe { Engine::new(attach.unwrap()) }.unwrap()
    }

    #[test]
    fn starts_once_however_many_threads_ask_at_the_same_time() {
        for round in 0..20 {
            let engine = engine(&format!("once-{round}"), "a");
            let barrier = std::sync::Barrier::new(8);
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        barrier.wait();
                        engine.start().unwrap();
                    });
                }
            });
            // A second attempt finds the socket taken, and says so.
            assert!(!engine.lock().unwrap().complained, "round {round}");
        }
    }

    #[test]
    fn a_host_name_is_cut_between_characters() {
        let engine = engine("name", "höhöhöhöhöhöhöhöhöhöhöhöhöhö");
        engine.start().unwrap();
        let state = engine.lock().unwrap();
        let name = state.port.as_ref().unwrap().capabilities().name;
        assert!((30..=31).contains(&name.len()), "{name}");
    }

    #[test]
    fn over_a_socket_no_more_is_under_way_than_a_buffer_takes() {
        let attach = |path_mtu: &'static str| {
            Attach::from_lookup(|variable| match variable {
                crate::attach::ENV_UDP_PORT => Some("14796".to_owned()),
                ENV_IP => Some("127.0.0.92".to_owned()),
                crate::attach::ENV_PATH_MTU => Some(path_mtu.to_owned()),
                _ => None,
            })
        };
        let window = |attach: Attach| {
            // SAFETY: no memory is ever registered.
            let engine = unsafe { Engine::new(attach) }.unwrap();
            engine.with_quietly(|rnic| rnic.config().window_packets).unwrap()
        };
        let (large, small) = (window(attach("4096").unwrap()), window(attach("1024").unwrap()));
        assert!((4..=910).contains(&large) && small > large, "{large} and {small}");
        let in_lab = engine("window", "a");
        assert_eq!(in_lab.with_quietly(|rnic| rnic.config().window_packets).unwrap(), 1 << 23);
    }

    #[test]
    fn psns_differ_from_call_to_call() {
        let engine = engine("psn", "a");
        assert_ne!(engine.fresh_psn(), engine.fresh_psn());
    }
}
