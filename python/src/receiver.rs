//! The receiver.

use crate::chunk::Chunk;
use crate::device::{Device, Open};
use crate::errors::{self, Empty, SettingsError, Stopped};
use crate::memory;
use longhaul_ingest::receiver;
use longhaul_ingest::settings::Settings;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time without a look at signals, at [`Receiver::stop`] and at the senders.
const TICK: Duration = Duration::from_millis(50);

fn read(settings: &str) -> PyResult<Settings> {
    serde_json::from_str(settings).map_err(|error| SettingsError::new_err(error.to_string()))
}

/// All settings, with the defaults of those that are missing, as JSON. Raises `SettingsError` where
/// they have no valid shape.
#[pyfunction]
pub fn complete_settings(settings: &str) -> PyResult<String> {
    let settings = read(settings)?;
    let shape = settings.shape();
    shape.check().map_err(|error| SettingsError::new_err(error.to_string()))?;
    serde_json::to_string(&settings).map_err(|error| SettingsError::new_err(error.to_string()))
}

/// A running receiver.
#[pyclass(frozen, module = "longhaul._native")]
pub struct Receiver {
    receiver: receiver::Receiver,
    /// Whether to stop when the last sender has ended.
    until_idle: bool,
    has_had_senders: AtomicBool,
    /// No chunk will come any more: what is queued is the rest.
    is_stopped: AtomicBool,
}

impl Receiver {
    fn halt(&self) {
        self.receiver.stop();
        self.is_stopped.store(true, Ordering::Release);
    }

    /// Whether there were senders, and all have ended.
    fn is_idle(&self) -> bool {
        let statistics = self.receiver.statistics();
        if statistics.sessions > 0 || statistics.counts.arrivals > 0 {
            self.has_had_senders.store(true, Ordering::Relaxed);
        }
        statistics.sessions == 0 && self.has_had_senders.load(Ordering::Relaxed)
    }
}

#[pymethods]
impl Receiver {
    #[new]
    fn new(
        py: Python<'_>,
        device: &Device,
        settings: &str,
        memory: Vec<Bound<'_, PyAny>>,
        until_idle: bool,
    ) -> PyResult<Self> {
        let settings = read(settings)?;
        let memory = memory.iter().map(memory::lent).collect::<PyResult<Vec<_>>>()?;
        let receiver = py.detach(|| {
            match device.open().map_err(|error| errors::of_device(&error))? {
                Open::Software(device) => receiver::Receiver::start_in(device, settings, memory),
                Open::Ibverbs(device) => receiver::Receiver::start_in(device, settings, memory),
            }
            .map_err(|error| errors::of_receiver(&error))
        })?;
        let (has_had_senders, is_stopped) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Receiver { receiver, until_idle, has_had_senders, is_stopped })
    }

    /// The next chunk; waits for one for at most `limit` seconds, or without limit. Raises `Empty`
    /// or `Stopped` where there is none.
    fn next(&self, py: Python<'_>, limit: Option<f64>) -> PyResult<Chunk> {
        let of = |limit: f64| {
            Duration::try_from_secs_f64(limit)
                .map_err(|_| SettingsError::new_err("a time limit is a number of seconds from 0"))
        };
        let limit = limit.map(of).transpose()?;
        let begun = Instant::now();
        loop {
            let left = limit.map_or(TICK, |limit| limit.saturating_sub(begun.elapsed()).min(TICK));
            let is_stopped = self.is_stopped.load(Ordering::Acquire);
            let wait = if is_stopped { Duration::ZERO } else { left };
            if let Some(chunk) = py.detach(|| self.receiver.next(wait)) {
                return Ok(Chunk::new(chunk));
            }
            if is_stopped {
                return Err(Stopped::new_err("the receiver has stopped"));
            }
            py.check_signals()?;
            if self.until_idle && py.detach(|| self.is_idle()) {
                self.stop(py);
            } else if left.is_zero() {
                return Err(Empty::new_err("no chunk is ready"));
            }
        }
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.halt());
    }

    #[getter]
    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Chunks that wait to be taken.
    fn queued(&self) -> usize {
        self.receiver.queued()
    }

    #[getter]
    fn fd(&self) -> i32 {
        self.receiver.fd()
    }

    #[getter]
    fn address(&self) -> (String, u16) {
        let address = self.receiver.address();
        (address.ip().to_string(), address.port())
    }

    fn notices(&self) -> Vec<String> {
        self.receiver.notices()
    }

    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let statistics = py.detach(|| self.receiver.statistics());
        let counts = &statistics.counts;
        let messages = PyDict::new(py);
        for (name, count) in statistics.fates.by_name() {
            messages.set_item(name, count)?;
        }
        let dict = PyDict::new(py);
        dict.set_item("messages", messages)?;
        for (name, count) in [
            ("arrivals", counts.arrivals),
            ("bytes", counts.bytes),
            ("windows", counts.windows_delivered),
            ("windows_complete", counts.windows_complete),
            ("windows_undelivered", counts.windows_undelivered),
            ("windows_skipped", counts.windows_skipped),
            ("open_windows", statistics.open_windows),
            ("duplicates", counts.duplicates),
            ("late", counts.late),
            ("outside", counts.outside),
            ("foreign", statistics.foreign),
            ("out_of_buffer", statistics.out_of_buffer),
            ("failed_pairs", statistics.failed_pairs),
            ("sessions", statistics.sessions),
            ("refused", statistics.refused),
            ("regions", statistics.regions),
            ("held_regions", statistics.held_regions),
        ] {
            dict.set_item(name, count)?;
        }
        Ok(dict)
    }
}
