//! The process-wide device `longhaul0` and its engine.

use std::ffi::c_char;
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};

use longhaul_abi_defs::{
    IBV_NODE_CA, IBV_SYSFS_NAME_MAX, IBV_SYSFS_PATH_MAX, IBV_TRANSPORT_IB, ibv_device,
};
use longhaul_rdma::{Attach, AttachError, Engine, RdmaError};

use crate::object::{self, Kind};

/// Name of the device.
pub(crate) const DEVICE_NAME: &str = "longhaul0";
/// Its path in sysfs.
pub(crate) const IBDEV_PATH: &str = "/sys/class/infiniband/longhaul0";

/// Name of the file through which kernel devices take commands.
pub(crate) const COMMANDS: &str = "uverbs-longhaul0";

/// The library's part of the device.
pub(crate) struct Device {
    pub(crate) attach: Attach,
    engine: Mutex<Option<Arc<Engine>>>,
}

impl Kind for Device {
    type Public = ibv_device;
    const MARK: u64 = 0x6c68_6465_7669_6365;
}

struct DevicePointer(*mut ibv_device);
// SAFETY: the device is made once, never destroyed, and never written to after that.
unsafe impl Send for DevicePointer {}
// SAFETY: as above.
unsafe impl Sync for DevicePointer {}

/// The device; null if the environment describes none.
///
/// An invalid environment is reported on stderr, once.
pub(crate) fn device() -> *mut ibv_device {
    static DEVICE: OnceLock<DevicePointer> = OnceLock::new();
    DEVICE
        .get_or_init(|| match Attach::from_env() {
            Ok(attach) => DevicePointer(object::create(
                public_part(),
                Device { attach, engine: Mutex::default() },
            )),
            Err(error) => {
                if error != AttachError::NoDevice {
                    eprintln!("longhaul: {error}");
                }
                DevicePointer(std::ptr::null_mut())
            }
        })
        .0
}

impl Device {
    /// The engine; created on first use, and again in the child of a fork.
    pub(crate) fn engine(&self) -> Result<Arc<Engine>, RdmaError> {
        let mut slot = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = &*slot
            && engine.is_ours()
        {
            return Ok(Arc::clone(engine));
        }
        // SAFETY: programs keep registered memory mapped, as verbs demands of them.
        let engine = unsafe { Engine::new(self.attach.clone()) }.inspect_err(|error| {
            // Programs try again, and print only an errno value.
            static SAID: Once = Once::new();
            SAID.call_once(|| eprintln!("longhaul: {error}"));
        })?;
        // The parent's engine is never dropped after a fork: its sockets and memory are the
        // parent's.
        std::mem::forget(slot.replace(Arc::clone(&engine)));
        Ok(engine)
    }
}

fn public_part() -> ibv_device {
    ibv_device {
        node_type: IBV_NODE_CA,
        transport_type: IBV_TRANSPORT_IB,
        name: c_text::<IBV_SYSFS_NAME_MAX>(DEVICE_NAME),
        dev_name: c_text::<IBV_SYSFS_NAME_MAX>(COMMANDS),
        dev_path: c_text::<IBV_SYSFS_PATH_MAX>("/sys/class/infiniband_verbs/uverbs-longhaul0"),
        ibdev_path: c_text::<IBV_SYSFS_PATH_MAX>(IBDEV_PATH),
        ..ibv_device::zeroed()
    }
}

/// `text` with a final 0 in an array, truncated if it is too long.
pub(crate) fn c_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(text.bytes()).take(N - 1) {
        *to = from as c_char;
    }
    out
}
