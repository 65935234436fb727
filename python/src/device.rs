//! RDMA devices.

use crate::errors;
use longhaul_ingest::device::DeviceError;
use longhaul_ingest::device::ibverbs::Ibverbs;
use longhaul_ingest::device::software::Software;
use longhaul_rdma as rdma;
use longhaul_rdma::{Attach, attach};
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};

/// An RDMA device, which any number of receivers and senders can use.
#[pyclass(frozen, module = "longhaul")]
pub struct Device(Kind);

enum Kind {
    Software(rdma::Device),
    /// A name of libibverbs; each user opens it.
    Ibverbs(String),
}

/// A device as the library takes it.
pub enum Open {
    Software(Software),
    Ibverbs(Ibverbs),
}

impl Device {
    pub fn open(&self) -> Result<Open, DeviceError> {
        Ok(match &self.0 {
            Kind::Software(device) => Open::Software(Software::new(device.clone())?),
            Kind::Ibverbs(name) => Open::Ibverbs(Ibverbs::open(name)?),
        })
    }
}

/// One end of a shared-memory link between two devices.
fn end(socket: &str, role: &str, ip: &str) -> PyResult<Device> {
    let failed = |cause: String| errors::DeviceError::new_err(format!("cannot open: {cause}"));
    let attach = Attach::from_lookup(|name| match name {
        attach::ENV_SOCKET => Some(socket.to_owned()),
        attach::ENV_ROLE => Some(role.to_owned()),
        attach::ENV_IP => Some(ip.to_owned()),
        _ => None,
    });
    let attach = attach.map_err(|error| failed(error.to_string()))?;
    let device = rdma::Device::open(attach).map_err(|error| failed(error.to_string()))?;
    Ok(Device(Kind::Software(device)))
}

#[pymethods]
impl Device {
    #[new]
    #[pyo3(signature = (name = None))]
    fn new(py: Python<'_>, name: Option<String>) -> PyResult<Self> {
        py.detach(|| match name {
            Some(name) => {
                Ibverbs::open(&name).map_err(|error| errors::of_device(&error))?;
                Ok(Device(Kind::Ibverbs(name)))
            }
            None => match rdma::Device::from_env() {
                Ok(device) => Ok(Device(Kind::Software(device))),
                Err(error) => Err(errors::DeviceError::new_err(format!(
                    "cannot open the software device: {error}: run Python with 'longhaul exec', or \
                     name a device of libibverbs"
                ))),
            },
        })
    }

    #[staticmethod]
    fn pair(py: Python<'_>) -> PyResult<(Device, Device)> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("longhaul-python-{}-{count}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name).display().to_string();
        py.detach(|| {
            Ok((end(&socket, "master", "10.77.0.1")?, end(&socket, "slave", "10.77.0.2")?))
        })
    }
}
