//! An attached device, which its ports share, and their buffer pools.

use crate::config::{AROUND_MTU, DpdkConfig};
use crate::eal;
use crate::error::DpdkError;
use crate::pci;
use crate::pool::BufferPool;
use crate::rss;
use crate::shim::{self, Info, Setup, Statistics};
use longhaul_port::LinkState;
use std::ffi::CString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// A driver whose client connects only at its start, and which carries longer frames than it
/// reports.
const MEMIF: &str = "net_memif";
/// Interval between starts of such a client until it finds a server.
const START_EVERY: Duration = Duration::from_millis(200);
/// Delay before a client whose connection ended is restarted: its driver cleans up on its own
/// thread, and must not be stopped meanwhile.
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// Buffers beyond those of the device's queues: for frames that wait to be sent, and for the
/// threads' caches.
const MORE_BUFFERS: u32 = 2048;
/// Usual buffer size, in bytes, which drivers are written for; some refuse smaller ones.
const BUFFER_BYTES_USUAL: usize = 2048;
const EPERM: i32 = -1;
const EEXIST: i32 = -17;
const ENOTSUP: i32 = -95;

/// A device's port number. Dropping it detaches the device.
struct Attached(u16);

impl Attached {
    fn new(config: &DpdkConfig) -> Result<Self, DpdkError> {
        let text = |text: &str| CString::new(text).expect("checked to have no zero");
        let device =
            text(&pci::address(config.device()).unwrap_or_else(|| config.device().to_owned()));
        let devargs = text(&config.devargs);
        let mut port = 0;
        let turn = eal::devices()?;
        eal::forget_log();
        // SAFETY: DPDK runs, the texts are zero-terminated, and `port` is written at most.
        let done = unsafe { shim::lh_attach(device.as_ptr(), devargs.as_ptr(), &raw mut port) };
        drop(turn);
        match done {
            0.. => Ok(Attached(port)),
            // The device was attached before.
            EEXIST => Err(DpdkError::InUse { device: config.device().to_owned() }),
            error => Err(DpdkError::NoDriver {
                devargs: config.devargs.clone(),
                reason: eal::reason(error),
            }),
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let turn = eal::devices();
        // SAFETY: only this owns the port. A device that cannot be detached stays until the process
        // ends.
        unsafe { shim::lh_detach(self.0) };
        drop(turn);
    }
}

/// An attached and configured device. Its ports share it; dropping the last one stops and detaches
/// it.
pub(crate) struct Device {
    attached: Attached,
    name: String,
    driver: String,
    mtu: usize,
    ports: u16,
    is_started: AtomicBool,
    is_up: AtomicBool,
    /// It connects only when it is started. Such a device has one port.
    connects_once: bool,
    watch: Mutex<LinkWatch>,
    /// One per port; dropped after the device, which holds buffers of them.
    pools: Vec<PortPools>,
}

/// Buffer pools of one port.
pub(crate) struct PortPools {
    /// For received and for built frames.
    pub(crate) buffers: BufferPool,
    /// For frames that are sent by reference; `None` if no frame is lent.
    pub(crate) references: Option<BufferPool>,
}

impl PortPools {
    fn new(config: &DpdkConfig, buffer_bytes: usize, socket: i32) -> Result<Self, DpdkError> {
        let (frames, lent) = (u32::from(config.queue_frames), u32::from(config.lent_frames));
        let buffers = (u32::from(config.rx_queues) + 1) * frames + MORE_BUFFERS + lent;
        let references =
            (lent > 0).then(|| BufferPool::of_references(frames + MORE_BUFFERS, socket));
        Ok(PortPools {
            buffers: BufferPool::new(buffers, buffer_bytes, socket)?,
            references: references.transpose()?,
        })
    }
}

impl Device {
    /// Attaches, configures and starts the device, with `ports` ports.
    pub(crate) fn open(config: &DpdkConfig, ports: u16) -> Result<Self, DpdkError> {
        pci::check(config.device(), Path::new("/sys/bus/pci/devices"))?;
        let attached = Attached::new(config)?;
        let mut info = Info::default();
        // SAFETY: the port is attached, and `info` is written at most.
        let done = unsafe { shim::lh_describe(attached.0, &raw mut info) };
        if done < 0 {
            return Err(failed(config, "asking what it can do", done));
        }
        let driver = text(&info);
        check_queues(config, ports, &info, &driver)?;
        let hash_key = rss::key_for(config, ports, &info, &driver)?;
        let mtu = fitting_mtu(config, &info, &driver)?;
        let frame_bytes_max = mtu + AROUND_MTU;
        let may_chain = info.takes_chains != 0 && info.gives_chains != 0;
        let whole = frame_bytes_max.next_multiple_of(64).max(BUFFER_BYTES_USUAL);
        let buffer_bytes = if may_chain { config.buffer_bytes.min(whole) } else { whole };
        let pools: Result<Vec<_>, _> =
            (0..ports).map(|_| PortPools::new(config, buffer_bytes, info.socket)).collect();
        let connects_once = driver == MEMIF && !is_server(config);
        let device = Device {
            attached,
            name: config.device().to_owned(),
            driver,
            mtu,
            ports,
            is_started: AtomicBool::new(false),
            is_up: AtomicBool::new(false),
            connects_once,
            watch: Mutex::default(),
            pools: pools?,
        };
        device.configure(config, &info, hash_key.as_deref())?;
        match device.start() {
            // There is no server to connect to yet.
            Err(_) if device.connects_once => return Ok(device),
            Err(error) => return Err(failed(config, "starting it", error)),
            Ok(()) => {}
        }
        if let Some(key) = hash_key {
            device.spread(config, &key)?;
        }
        Ok(device)
    }

    fn configure(
        &self,
        config: &DpdkConfig,
        info: &Info,
        hash_key: Option<&[u8]>,
    ) -> Result<(), DpdkError> {
        let pools: Vec<_> = self.pools.iter().map(|pools| pools.buffers.as_ptr()).collect();
        let setup = Setup {
            pools: pools.as_ptr(),
            hash_key: hash_key.map_or(std::ptr::null(), <[u8]>::as_ptr),
            mtu: (self.mtu as u32).min(info.mtu_max),
            tx_queues: self.ports,
            rx_queues_each: config.rx_queues,
            rx_slots: config.queue_frames,
            tx_slots: config.queue_frames,
            chains: u8::from(self.pools[0].buffers.buffer_bytes < self.mtu + AROUND_MTU),
            refers: u8::from(config.lent_frames > 0),
        };
        // SAFETY: the port is attached; there is a pool for each sending queue, which lives until
        // the port is detached, since it is dropped after it; the key is as long as `info` says.
        let done = unsafe { shim::lh_configure(self.id(), &raw const setup) };
        if done < 0 { Err(failed(config, "configuring it", done)) } else { Ok(()) }
    }

    /// Makes the device spread frames by `key`, and checks that it does.
    fn spread(&self, config: &DpdkConfig, key: &[u8]) -> Result<(), DpdkError> {
        let queues = self.ports * config.rx_queues;
        // SAFETY: the port is started, and the key as long as the device says.
        match unsafe { shim::lh_spread_evenly(self.id(), key.as_ptr(), queues) } {
            0.. => Ok(()),
            ENOTSUP => Err(rss::no_rss(
                config,
                &self.driver,
                "the same for both directions: it keeps another key",
            )),
            error => Err(failed(config, "having it spread frames", error)),
        }
    }

    fn start(&self) -> Result<(), i32> {
        // SAFETY: the port is attached and configured.
        let done = unsafe { shim::lh_start(self.id()) };
        self.is_started.store(done == 0, Ordering::Release);
        if done < 0 { Err(done) } else { Ok(()) }
    }

    /// Makes a client reconnect. The calling port must be the device's only one.
    fn restart(&self) -> Result<(), i32> {
        if self.is_started.swap(false, Ordering::AcqRel) {
            // SAFETY: the port is attached and started, and its only port, the caller, does not use
            // its queues meanwhile.
            unsafe { shim::lh_stop(self.id()) };
        }
        self.start()
    }

    /// DPDK's number of the device.
    pub(crate) fn id(&self) -> u16 {
        self.attached.0
    }

    #[inline]
    pub(crate) fn pools(&self, port: u16) -> &PortPools {
        &self.pools[usize::from(port)]
    }

    pub(crate) fn driver(&self) -> &str {
        &self.driver
    }

    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// True if frames may be received and sent.
    #[inline]
    pub(crate) fn is_started(&self) -> bool {
        self.is_started.load(Ordering::Acquire)
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let mut statistics = Statistics::default();
        // SAFETY: the port is attached, and `statistics` is written at most. A device without them
        // leaves zeros.
        unsafe { shim::lh_statistics(self.id(), &raw mut statistics) };
        statistics
    }

    /// Whether the link is up. Restarts a device that would otherwise stay down.
    pub(crate) fn look(&self, now: Instant) -> bool {
        match self.watch.try_lock() {
            Ok(mut watch) => watch.look(self, now),
            Err(TryLockError::Poisoned(watch)) => watch.into_inner().look(self, now),
            // Another port is checking.
            Err(TryLockError::WouldBlock) => {}
        }
        self.is_up.load(Ordering::Relaxed)
    }

    /// Brings the link up, or takes it down until it is brought up: the peer loses its carrier.
    /// Otherwise returns the reason, and the cure.
    pub(crate) fn set_link(&self, to: LinkState) -> Result<(), String> {
        let is_up = to == LinkState::Up;
        let mut watch = self.watch();
        eal::forget_log();
        // SAFETY: the port is attached.
        let done = unsafe { shim::lh_set_link(self.id(), i32::from(is_up)) };
        watch.is_taken_down = !is_up && done >= 0;
        watch.reason = None;
        if done < 0 { Err(why_link_stays(&self.driver, done)) } else { Ok(()) }
    }

    /// Why the link is down, if the device reports it.
    pub(crate) fn reason(&self) -> Option<String> {
        self.watch().reason.clone()
    }

    pub(crate) fn restarts(&self) -> u64 {
        self.watch().restarts
    }

    fn watch(&self) -> MutexGuard<'_, LinkWatch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link_is_up(&self) -> bool {
        // SAFETY: the port is attached.
        self.is_started() && unsafe { shim::lh_link_is_up(self.id()) } == 1
    }
}

fn failed(config: &DpdkConfig, operation: &'static str, error: i32) -> DpdkError {
    DpdkError::Device { device: config.device().to_owned(), operation, reason: eal::reason(error) }
}

/// True if received frames stay unchanged. A net_memif without copies leaves them in its peer's
/// memory.
pub(crate) fn owns_frames(driver: &str, config: &DpdkConfig) -> bool {
    driver != MEMIF || !config.devargs.contains("zero-copy")
}

fn is_server(config: &DpdkConfig) -> bool {
    ["role=server", "role=master"].iter().any(|role| config.devargs.contains(role))
}

fn text(info: &Info) -> String {
    let bytes: Vec<u8> =
        info.driver.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// MTU of the port, in bytes. Refuses a device that does not support the configuration.
fn fitting_mtu(config: &DpdkConfig, info: &Info, driver: &str) -> Result<usize, DpdkError> {
    let device = || config.device().to_owned();
    let wanted = config.mtu.unwrap_or(DpdkConfig::MTU_DEFAULT);
    if u32::from(wanted) <= info.mtu_max || driver == MEMIF {
        return Ok(wanted.into());
    }
    match config.mtu {
        Some(wanted) => Err(DpdkError::Mtu {
            device: device(),
            driver: driver.to_owned(),
            most: info.mtu_max,
            wanted,
        }),
        None => Ok(info.mtu_max as usize),
    }
}

/// Refuses to use more ports or queues than the device has.
fn check_queues(
    config: &DpdkConfig,
    ports: u16,
    info: &Info,
    driver: &str,
) -> Result<(), DpdkError> {
    let rx_queues = usize::from(ports) * usize::from(config.rx_queues);
    // The peer of a memif decides the number of rings; its driver uses the first one in place of
    // missing ones.
    let [rx_most, tx_most] =
        if driver == MEMIF { [1; 2] } else { [info.rx_queues_max, info.tx_queues_max] };
    let refuse = |kind, most, wanted| {
        let device = config.device().to_owned();
        let cure = match driver {
            "net_af_packet" => "give it 'qpairs=N' among its arguments, or the box fewer cores",
            "net_af_xdp" => "give it 'queue_count=N' among its arguments, or the box fewer cores",
            "net_pcap" => "give it as many 'rx_pcap=' and 'tx_pcap=' among its arguments",
            _ => "--dpdk-queues=1, and no more cores than queues",
        };
        Err(DpdkError::Queues { device, driver: driver.to_owned(), kind, most, wanted, cure })
    };
    if rx_queues > rx_most.into() {
        return refuse("receive", rx_most, rx_queues);
    }
    if ports > tx_most {
        return refuse("transmit", tx_most, ports.into());
    }
    Ok(())
}

/// Why a driver does not set its link.
fn why_link_stays(driver: &str, error: i32) -> String {
    match (error, driver) {
        (ENOTSUP, "net_af_packet") => {
            format!("{driver} cannot; name its interface as the port instead, as in eth1")
        }
        (ENOTSUP, "net_af_xdp") => {
            format!("{driver} cannot; name its interface as the port instead, as in xdp:eth1")
        }
        (ENOTSUP, _) => format!("{driver} cannot"),
        (EPERM, _) => format!("{driver} needs the privileges that a box drops: --keep-privileges"),
        _ => format!("{driver}: {}", eal::reason(error)),
    }
}

/// Tracks a link's state.
#[derive(Debug, Default)]
struct LinkWatch {
    /// The box has taken the link down: its state is not the peer's doing.
    is_taken_down: bool,
    restart_at: Option<Instant>,
    restarts: u64,
    reason: Option<String>,
}

impl LinkWatch {
    fn look(&mut self, device: &Device, now: Instant) {
        let is_up = !self.is_taken_down && device.link_is_up();
        device.is_up.store(is_up, Ordering::Relaxed);
        if self.is_taken_down {
            self.restart_at = None;
            self.reason = Some("the box has taken it down".to_owned());
        } else if is_up {
            self.restart_at = None;
            self.reason = None;
        } else if device.connects_once {
            let patience = if device.is_started() { RESTART_AFTER } else { START_EVERY };
            if now >= *self.restart_at.get_or_insert(now + patience) {
                self.restart_at = None;
                self.restarts += 1;
                if let Err(error) = device.restart() {
                    self.reason = Some(format!("{}: {}", device.name, eal::reason(error)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "net_small";

    fn fitting(change: fn(&mut DpdkConfig), driver: &str) -> Result<usize, String> {
        let info = Info { mtu_max: 1500, rx_queues_max: 4, tx_queues_max: 3, ..Info::default() };
        let mut config = DpdkConfig::new("0000:3b:00.0,x=y");
        change(&mut config);
        check_queues(&config, 2, &info, driver)
            .and_then(|()| fitting_mtu(&config, &info, driver))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_device_lacks_is_told_with_what_it_has() {
        assert_eq!(fitting(|_| (), SMALL), Ok(1500), "as much as it takes");
        assert_eq!(fitting(|config| config.mtu = Some(1400), SMALL), Ok(1400));
        let error = fitting(|config| config.mtu = Some(9000), SMALL).unwrap_err();
        assert!(
            error.starts_with("0000:3b:00.0 (net_small) ") && error.contains("--dpdk-mtu=1500"),
            "{error}"
        );
        assert_eq!(fitting(|config| config.rx_queues = 2, SMALL), Ok(1500));
        let error = fitting(|config| config.rx_queues = 3, SMALL).unwrap_err();
        assert!(
            error.contains("has 4 receive queues, and 6 are asked for: --dpdk-queues=1"),
            "{error}"
        );
        let error = fitting(|config| config.rx_queues = 3, "net_af_packet").unwrap_err();
        assert!(error.contains("'qpairs=N'"), "{error}");
        let error = fitting(|_| (), MEMIF).unwrap_err();
        assert!(error.contains("has 1 receive queue, and 2 are asked for"), "{error}");
    }

    #[test]
    fn a_link_that_a_driver_does_not_set_is_told_with_the_cure() {
        let why = why_link_stays("net_af_packet", ENOTSUP);
        assert!(why.contains("name its interface"), "{why}");
        assert_eq!(why_link_stays(SMALL, ENOTSUP), "net_small cannot");
        let why = why_link_stays(SMALL, EPERM);
        assert!(why.contains("--keep-privileges"), "{why}");
    }

    #[test]
    fn a_memif_takes_more_than_it_says() {
        let (config, info) =
            (DpdkConfig::new("net_memif0"), Info { mtu_max: 1500, ..Info::default() });
        assert_eq!(fitting_mtu(&config, &info, MEMIF), Ok(9216));
    }
}
