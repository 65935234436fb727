//! The library's errors as the package's exceptions, with the library's sentences.

use longhaul_ingest::device;
use longhaul_ingest::receiver::ReceiverError;
use longhaul_ingest::sender::SenderError;
use pyo3::{PyErr, import_exception};

import_exception!(longhaul.errors, DeviceError);
import_exception!(longhaul.errors, Empty);
import_exception!(longhaul.errors, ReleasedError);
import_exception!(longhaul.errors, ResourceError);
import_exception!(longhaul.errors, SendError);
import_exception!(longhaul.errors, SessionError);
import_exception!(longhaul.errors, SettingsError);
import_exception!(longhaul.errors, Stopped);

pub fn of_device(error: &device::DeviceError) -> PyErr {
    DeviceError::new_err(error.to_string())
}

pub fn of_receiver(error: &ReceiverError) -> PyErr {
    let text = error.to_string();
    match error {
        ReceiverError::Shape(_)
        | ReceiverError::Setting(_)
        | ReceiverError::Sender(_)
        | ReceiverError::Memory { .. } => SettingsError::new_err(text),
        ReceiverError::Device(_) => DeviceError::new_err(text),
        ReceiverError::Io { .. } => ResourceError::new_err(text),
    }
}

pub fn of_sender(error: &SenderError) -> PyErr {
    let text = error.to_string();
    match error {
        SenderError::Setting(_) => SettingsError::new_err(text),
        SenderError::Connect { .. } => {
            SessionError::new_err(format!("{text}: start the receiver first"))
        }
        SenderError::Session(_) => SessionError::new_err(text),
        SenderError::Device(_) => DeviceError::new_err(text),
        SenderError::Failed(_) | SenderError::Stalled => SendError::new_err(text),
    }
}
