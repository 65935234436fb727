//! The sender.

use crate::device::{Device, Open};
use crate::errors::{self, SendError, SettingsError};
use longhaul_ingest::device::{self, Transport};
use longhaul_ingest::sender::{self, Schedule, SenderError, Sent, Source, Station};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest time without a look at signals.
const TICK: Duration = Duration::from_millis(50);

/// A sender of any device.
trait Stream: Send {
    fn send(&mut self, window: &[u8], stop: &AtomicBool) -> Result<Sent, SenderError>;
    fn finish(self: Box<Self>) -> Result<Sent, SenderError>;
}

struct Paced<D: device::Device> {
    sender: sender::Sender<D>,
    schedule: Schedule,
}

impl<D: device::Device> Stream for Paced<D> {
    fn send(&mut self, window: &[u8], stop: &AtomicBool) -> Result<Sent, SenderError> {
        self.sender.send(window, &mut self.schedule, stop)
    }

    fn finish(self: Box<Self>) -> Result<Sent, SenderError> {
        self.sender.finish(&self.schedule)
    }
}

fn connect<D: device::Device>(
    device: &D,
    to: &str,
    station: Station,
) -> Result<(u64, Box<dyn Stream>), SenderError> {
    let schedule = Schedule::new(&station);
    let sender = sender::Sender::connect(device, to, station)?;
    Ok((sender.first_window(), Box::new(Paced { sender, schedule })))
}

/// A connected sender of arrays.
#[pyclass(frozen, module = "longhaul._native")]
pub struct Sender {
    /// `None` once finished or failed.
    stream: Mutex<Option<Box<dyn Stream>>>,
    #[pyo3(get)]
    first_window: u64,
    #[pyo3(get)]
    window_bytes: usize,
}

/// Runs `work` without the interpreter's lock, and handles signals meanwhile: an exception of a
/// handler sets `stop`, and is returned when `work` has ended.
fn watched<R: Send>(
    py: Python<'_>,
    stop: &AtomicBool,
    work: impl FnOnce() -> PyResult<R> + Send,
) -> PyResult<R> {
    py.detach(|| {
        std::thread::scope(|scope| {
            let (done, outcome) = sync_channel(1);
            scope.spawn(move || done.send(work()));
            let mut raised = Ok(());
            loop {
                match outcome.recv_timeout(TICK) {
                    Ok(result) => return raised.and(result),
                    Err(RecvTimeoutError::Timeout) if raised.is_ok() => {
                        raised = Python::attach(|py| py.check_signals());
                        stop.store(raised.is_err(), Ordering::Relaxed);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(SendError::new_err("the sending thread panicked"));
                    }
                }
            }
        })
    })
}

#[pymethods]
impl Sender {
    #[new]
    #[pyo3(signature = (
        device, to, *, stream, reliable, subbands, blocks, message_bytes, rate, jitter, gap, list,
        solicit, first_window, announce, seed
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        device: &Device,
        to: &str,
        stream: u32,
        reliable: bool,
        subbands: u32,
        blocks: u32,
        message_bytes: u32,
        rate: Option<f64>,
        jitter: f64,
        gap: f64,
        list: u32,
        solicit: u32,
        first_window: Option<u64>,
        announce: bool,
        seed: u64,
    ) -> PyResult<Self> {
        let jitter = Duration::try_from_secs_f64(jitter)
            .map_err(|_| SettingsError::new_err("the jitter is a number of seconds from 0"))?;
        let station = Station {
            stream,
            transport: if reliable { Transport::Rc } else { Transport::Uc },
            subbands,
            blocks,
            message_bytes,
            rate,
            jitter,
            gap,
            list,
            solicit,
            windows: None,
            first_window,
            announce,
            seed,
            source: Source::Unchanged,
        };
        let slots = u64::from(subbands) * u64::from(blocks);
        let window_bytes = slots.saturating_mul(message_bytes.into()) as usize;
        let (first_window, stream) = watched(py, &AtomicBool::new(false), || {
            match device.open().map_err(|error| errors::of_device(&error))? {
                Open::Software(device) => connect(&device, to, station),
                Open::Ibverbs(device) => connect(&device, to, station),
            }
            .map_err(|error| errors::of_sender(&error))
        })?;
        Ok(Sender { stream: Mutex::new(Some(stream)), first_window, window_bytes })
    }

    /// Sends whole windows.
    fn send<'py>(&self, py: Python<'py>, bytes: PyBuffer<u8>) -> PyResult<Bound<'py, PyDict>> {
        if bytes.len_bytes() == 0 || !bytes.len_bytes().is_multiple_of(self.window_bytes) {
            return Err(SettingsError::new_err(format!(
                "{} bytes are no whole number of windows: a window has {}",
                bytes.len_bytes(),
                self.window_bytes
            )));
        }
        // A copy: Python code may change the array meanwhile.
        let bytes = bytes.to_vec(py)?;
        let stop = AtomicBool::new(false);
        let sent = watched(py, &stop, || {
            let mut held = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
            let stream = held.as_mut().ok_or_else(finished)?;
            let mut sent = Sent::default();
            for window in bytes.chunks_exact(self.window_bytes) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                match stream.send(window, &stop) {
                    Ok(so_far) => sent = so_far,
                    Err(error) => {
                        *held = None;
                        return Err(errors::of_sender(&error));
                    }
                }
            }
            Ok(sent)
        })?;
        dict(py, &sent)
    }

    /// Says farewell to the receiver, and returns the counts.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let sent = watched(py, &AtomicBool::new(false), || {
            let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner).take();
            let stream = stream.ok_or_else(finished)?;
            stream.finish().map_err(|error| errors::of_sender(&error))
        })?;
        dict(py, &sent)
    }

    /// Ends the session without a farewell, as a sender that dies.
    fn close(&self, py: Python<'_>) {
        py.detach(|| *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = None);
    }
}

fn finished() -> PyErr {
    SendError::new_err("the sender has finished")
}

fn dict<'py>(py: Python<'py>, sent: &Sent) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("windows", sent.windows)?;
    dict.set_item("messages", sent.messages)?;
    dict.set_item("unsent", sent.unsent)?;
    dict.set_item("bytes", sent.bytes)?;
    dict.set_item("elapsed_s", sent.elapsed.as_secs_f64())?;
    dict.set_item("behind_s", sent.behind.as_secs_f64())?;
    dict.set_item("present", sent.received.map(|(present, _)| present))?;
    dict.set_item("missing", sent.received.map(|(_, missing)| missing))?;
    Ok(dict)
}
