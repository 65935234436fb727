//! An attached device and its pool of buffers.

use crate::config::{AROUND_MTU, DpdkConfig};
use crate::eal;
use crate::error::DpdkError;
use crate::pci;
use crate::shim::{self, Info, Pool, Setup, Statistics};
use std::ffi::CString;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A driver whose client connects once, when it is started, and which carries frames longer than it says.
const MEMIF: &str = "net_memif";
/// How often such a client is started that found nobody to connect to.
const START_EVERY: Duration = Duration::from_millis(200);
/// How long a client that had connected is left alone before it is started again: its driver cleans up on a thread of its
/// own, and must not be stopped meanwhile.
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// Buffers beyond those that the device's queues hold: frames that wait to be sent, and what threads keep at hand.
const MORE_BUFFERS: u32 = 2048;
/// Drivers are written for buffers of this size, in bytes; some refuse smaller ones.
const BUFFER_BYTES_USUAL: usize = 2048;
/// What DPDK needs around each buffer, in bytes: its headroom, its structure and the pool's.
const AROUND_BUFFER: usize = 128 + 128 + 64;
const ENOMEM: i32 = -12;
const EEXIST: i32 = -17;

/// The buffers of one port.
pub(crate) struct BufferPool {
    pool: NonNull<Pool>,
    buffers: u32,
    /// Bytes of frame in each.
    pub(crate) buffer_bytes: usize,
}

impl BufferPool {
    fn new(buffers: u32, buffer_bytes: usize, socket: i32) -> Result<Self, DpdkError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("longhaul_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let name = CString::new(name).expect("no zero in it");
        // SAFETY: DPDK runs, and the name is zero-terminated; it is copied.
        let pool = unsafe { shim::lh_pool(name.as_ptr(), buffers, buffer_bytes as u32, socket) };
        let Some(pool) = NonNull::new(pool) else {
            let megabytes = (((buffer_bytes + AROUND_BUFFER) * buffers as usize) >> 20) + 64;
            let reason = eal::reason(ENOMEM);
            return Err(DpdkError::NoMemory { buffers, bytes: buffer_bytes, reason, megabytes });
        };
        Ok(Self { pool, buffers, buffer_bytes })
    }

    pub(crate) fn as_ptr(&self) -> *mut Pool {
        self.pool.as_ptr()
    }

    /// Buffers that nobody has.
    pub(crate) fn free_buffers(&self) -> usize {
        // SAFETY: the pool lives as long as this.
        unsafe { shim::lh_pool_free_buffers(self.pool.as_ptr()) as usize }
    }
}

impl Drop for BufferPool {
    fn drop(&mut self) {
        // A device of another port may hold some, as those of one ring do: then it stays.
        if self.free_buffers() == self.buffers as usize {
            // SAFETY: all buffers are back, and nobody else has the pool.
            unsafe { shim::lh_pool_free(self.pool.as_ptr()) };
        }
    }
}

/// A device's port, which gives the device back when dropped.
struct Attached(u16);

impl Attached {
    fn new(config: &DpdkConfig) -> Result<Self, DpdkError> {
        let text = |text: &str| CString::new(text).expect("checked to have no zero");
        let device = text(&pci::address(config.device()).unwrap_or_else(|| config.device().to_owned()));
        let devargs = text(&config.devargs);
        let mut port = 0;
        let turn = eal::devices()?;
        eal::forget_log();
        // SAFETY: DPDK runs, the texts are zero-terminated, and `port` is written at most.
        let done = unsafe { shim::lh_attach(device.as_ptr(), devargs.as_ptr(), &raw mut port) };
        drop(turn);
        match done {
            0.. => Ok(Attached(port)),
            // It was there before.
            EEXIST => Err(DpdkError::InUse { device: config.device().to_owned() }),
            error => Err(DpdkError::NoDriver { devargs: config.devargs.clone(), reason: eal::reason(error) }),
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let turn = eal::devices();
        // SAFETY: the port is this one's own. A device that does not go stays until the process ends.
        unsafe { shim::lh_detach(self.0) };
        drop(turn);
    }
}

/// An attached and configured device.
pub(crate) struct Device {
    attached: Attached,
    name: String,
    driver: String,
    mtu: usize,
    is_started: bool,
    /// It connects when it is started, and does not try again.
    connects_once: bool,
    /// After the device, which holds buffers of it.
    pool: BufferPool,
}

// SAFETY: DPDK's functions for one port may be called from any thread, one at a time; so may those of a pool. `&Device`
// is shared by nobody: the port that owns it is used through `&mut` by its data path, and counters are only read.
unsafe impl Send for Device {}

impl Device {
    /// Attaches, configures and starts the device.
    pub(crate) fn open(config: &DpdkConfig) -> Result<Self, DpdkError> {
        config.validate()?;
        pci::check(config.device(), Path::new("/sys/bus/pci/devices"))?;
        let attached = Attached::new(config)?;
        let name = config.device().to_owned();
        let failed = |operation, error| DpdkError::Device {
            device: config.device().to_owned(),
            operation,
            reason: eal::reason(error),
        };
        // SAFETY: zeros are a value of it: numbers and an array of them.
        let mut info: Info = unsafe { std::mem::zeroed() };
        // SAFETY: the port is attached, and `info` is written at most.
        let done = unsafe { shim::lh_describe(attached.0, &raw mut info) };
        if done < 0 {
            return Err(failed("asking what it can do", done));
        }
        let driver = text(&info);
        let mtu = fitting_mtu(config, &info, &driver)?;
        let frame_bytes_max = mtu + AROUND_MTU;
        let may_chain = info.takes_chains != 0 && info.gives_chains != 0;
        let whole = frame_bytes_max.next_multiple_of(64).max(BUFFER_BYTES_USUAL);
        let buffer_bytes = if may_chain { config.buffer_bytes.min(whole) } else { whole };
        let buffers = (u32::from(config.rx_queues) + 1) * u32::from(config.queue_frames) + MORE_BUFFERS;
        let pool = BufferPool::new(buffers, buffer_bytes, info.socket)?;
        let is_server = ["role=server", "role=master"].iter().any(|role| config.devargs.contains(role));
        let connects_once = driver == MEMIF && !is_server;
        let mut device = Device { attached, name, driver, mtu, is_started: false, connects_once, pool };
        let setup = Setup {
            pool: device.pool.as_ptr(),
            mtu: (mtu as u32).min(info.mtu_max),
            rx_queues: config.rx_queues,
            rx_slots: config.queue_frames,
            tx_slots: config.queue_frames,
            chains: u8::from(buffer_bytes < frame_bytes_max),
        };
        // SAFETY: the port is attached, and the pool lives until it is detached: it is dropped after it.
        let done = unsafe { shim::lh_configure(device.port(), &raw const setup) };
        if done < 0 {
            return Err(failed("configuring it", done));
        }
        match device.start() {
            // Nobody is there to connect to.
            Err(_) if device.connects_once => Ok(device),
            Err(error) => Err(failed("starting it", error)),
            Ok(()) => Ok(device),
        }
    }

    fn start(&mut self) -> Result<(), i32> {
        // SAFETY: the port is attached and configured.
        let done = unsafe { shim::lh_start(self.attached.0) };
        self.is_started = done == 0;
        if done < 0 { Err(done) } else { Ok(()) }
    }

    /// Has a client connect again.
    fn restart(&mut self) -> Result<(), i32> {
        if self.is_started {
            self.is_started = false;
            // SAFETY: the port is attached and started.
            unsafe { shim::lh_stop(self.attached.0) };
        }
        self.start()
    }

    pub(crate) fn port(&self) -> u16 {
        self.attached.0
    }

    pub(crate) fn pool(&self) -> &BufferPool {
        &self.pool
    }

    pub(crate) fn driver(&self) -> &str {
        &self.driver
    }

    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// Frames may be received and sent.
    pub(crate) fn is_started(&self) -> bool {
        self.is_started
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let mut statistics = Statistics::default();
        // SAFETY: the port is attached, and `statistics` is written at most. A device without them leaves zeros.
        unsafe { shim::lh_statistics(self.attached.0, &raw mut statistics) };
        statistics
    }

    fn link_is_up(&self) -> bool {
        // SAFETY: the port is attached.
        self.is_started && unsafe { shim::lh_link_is_up(self.attached.0) } == 1
    }
}

fn text(info: &Info) -> String {
    let bytes: Vec<u8> = info.driver.iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The MTU for the port, in bytes; refuses a device that cannot do what is asked for.
fn fitting_mtu(config: &DpdkConfig, info: &Info, driver: &str) -> Result<usize, DpdkError> {
    let device = || config.device().to_owned();
    if config.rx_queues > 1 && info.hashes_udp == 0 {
        return Err(DpdkError::NoRss { device: device(), driver: driver.to_owned() });
    }
    if config.rx_queues > info.rx_queues_max {
        return Err(DpdkError::Queues { device: device(), most: info.rx_queues_max });
    }
    let wanted = config.mtu.unwrap_or(DpdkConfig::MTU_DEFAULT);
    if u32::from(wanted) <= info.mtu_max || driver == MEMIF {
        return Ok(wanted.into());
    }
    match config.mtu {
        Some(wanted) => {
            Err(DpdkError::Mtu { device: device(), driver: driver.to_owned(), most: info.mtu_max, wanted })
        }
        None => Ok(info.mtu_max as usize),
    }
}

/// Sees a link come and go.
#[derive(Debug, Default)]
pub(crate) struct LinkWatch {
    restart_at: Option<Instant>,
    restarts: u64,
    reason: Option<String>,
}

impl LinkWatch {
    /// True when the link is up. Has a device that would stay down for good try again.
    pub(crate) fn look(&mut self, device: &mut Device, now: Instant) -> bool {
        if device.link_is_up() {
            self.restart_at = None;
            self.reason = None;
            return true;
        }
        if device.connects_once {
            let patience = if device.is_started { RESTART_AFTER } else { START_EVERY };
            if now >= *self.restart_at.get_or_insert(now + patience) {
                self.restart_at = None;
                self.restarts += 1;
                if let Err(error) = device.restart() {
                    self.reason = Some(format!("{}: {}", device.name, eal::reason(error)));
                }
            }
        }
        false
    }

    pub(crate) fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Why it is down, where the device says.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitting(change: fn(&mut DpdkConfig), driver: &str) -> Result<usize, String> {
        let info = Info {
            driver: [0; 64],
            mtu_max: 1500,
            socket: 0,
            rx_queues_max: 4,
            takes_chains: 0,
            gives_chains: 0,
            hashes_udp: 1,
        };
        let mut config = DpdkConfig::new("0000:3b:00.0,x=y");
        change(&mut config);
        fitting_mtu(&config, &info, driver).map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_device_lacks_is_told_with_what_it_has() {
        assert_eq!(fitting(|_| (), "net_small"), Ok(1500), "as much as it takes");
        assert_eq!(fitting(|config| config.mtu = Some(1400), "net_small"), Ok(1400));
        assert_eq!(fitting(|config| config.mtu = Some(9000), MEMIF), Ok(9000), "it takes more than it says");
        let error = fitting(|config| config.mtu = Some(9000), "net_small").unwrap_err();
        assert!(
            error.starts_with("0000:3b:00.0 (net_small) ") && error.contains("--dpdk-mtu=1500"),
            "{error}"
        );
        let error = fitting(|config| config.rx_queues = 5, "net_small").unwrap_err();
        assert!(error.contains("--dpdk-queues=4"), "{error}");
    }
}
