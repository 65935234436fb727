//! A port that discards every frame and never receives one.

use std::sync::Arc;

use crate::port::{FRAME_BYTES_MIN, check_length};
use crate::{Descriptors, LinkState, Port, PortCapabilities, PortCounters, PortError};

/// Always up, always has transmit slots, and counts the frames that it discards: the far end of a
/// test or a benchmark.
#[derive(Debug)]
pub struct NullPort {
    name: Arc<str>,
    scratch: Box<[u8]>,
    counters: PortCounters,
}

impl NullPort {
    /// Frames between two flushes. The port has no queue; this only bounds a caller's batch.
    pub const TRANSMIT_SLOTS: usize = 1024;

    /// A null port for frames of up to `frame_bytes_max` bytes, raised to [`FRAME_BYTES_MIN`] if
    /// smaller, which is also its memory.
    #[must_use]
    pub fn new(name: &str, frame_bytes_max: usize) -> Self {
        Self {
            name: name.into(),
            scratch: vec![0; frame_bytes_max.max(FRAME_BYTES_MIN)].into_boxed_slice(),
            counters: PortCounters { link_ups: 1, ..PortCounters::default() },
        }
    }
}

impl Port for NullPort {
    fn receive(&mut self, _max: usize, _each: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        Ok(0)
    }

    fn transmit_room(&mut self) -> usize {
        Self::TRANSMIT_SLOTS
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, PortError> {
        check_length(len, self.scratch.len())?;
        fill(&mut self.scratch[..len]);
        self.counters.count_tx(len);
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    fn arm(&mut self) -> Result<bool, PortError> {
        Ok(false)
    }

    fn disarm(&mut self) {}

    fn descriptors(&self) -> Descriptors {
        Descriptors::new()
    }

    fn service(&mut self) -> Result<LinkState, PortError> {
        Ok(LinkState::Up)
    }

    fn link_state(&self) -> LinkState {
        LinkState::Up
    }

    fn capabilities(&self) -> PortCapabilities {
        PortCapabilities {
            kind: "null",
            name: Arc::clone(&self.name),
            frame_bytes_max: self.scratch.len(),
            transmit_slots: Self::TRANSMIT_SLOTS,
            interrupts: true,
        }
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swallows_and_counts() {
        let mut port = NullPort::new("sink", 100);
        assert!(port.transmit(60, &mut |frame| assert_eq!(frame.len(), 60)).unwrap());
        assert!(matches!(
            port.transmit(101, &mut |_| panic!("not to be filled")),
            Err(PortError::FrameTooLong { len: 101, max: 100 })
        ));
        assert!(matches!(
            port.transmit(13, &mut |_| panic!("not to be filled")),
            Err(PortError::FrameTooShort { len: 13, min: 14 })
        ));
        assert_eq!(port.receive(8, &mut |_| panic!("nothing to receive")).unwrap(), 0);
        assert_eq!((port.counters().tx_frames, port.counters().tx_bytes), (1, 60));
    }
}
