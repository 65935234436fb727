//! Port at one end of an in-process ring, which lends frames or copies them.

use longhaul_port::loopback::{self, LoopbackPort};
use longhaul_port::{Lease, Port, PortError, Received, forward_port};
use std::io;

/// One end of an in-process ring between two stages.
pub struct RingEnd {
    port: LoopbackPort,
    copies: bool,
}

impl RingEnd {
    /// Both ends. Frames pass by reference, or with `copies` are copied into the ring and out of
    /// it, as by ports that lend none. The rest as [`loopback::pair`].
    ///
    /// # Errors
    /// As [`loopback::pair`].
    pub fn pair(
        name: &str,
        slots: usize,
        frame_bytes_max: usize,
        copies: bool,
    ) -> io::Result<(Self, Self)> {
        let (a, b) = loopback::pair(name, slots, frame_bytes_max)?;
        Ok((RingEnd { port: a, copies }, RingEnd { port: b, copies }))
    }
}

impl Port for RingEnd {
    fn receive_lent(
        &mut self,
        max: usize,
        each: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, PortError> {
        if self.copies {
            return self.port.receive(max, &mut |bytes| each(Received::Passing(bytes)));
        }
        self.port.receive_lent(max, each)
    }

    fn transmit_lent(&mut self, lease: &Lease) -> Result<bool, PortError> {
        if self.copies {
            let bytes = lease.bytes();
            return self.port.transmit(bytes.len(), &mut |out| out.copy_from_slice(bytes));
        }
        self.port.transmit_lent(lease)
    }

    forward_port!(
        |self| self.port => receive, transmit_room, transmit, flush, arm, disarm, descriptors
    );
    forward_port!(|self| self.port => service, link_state, capabilities, counters);
}
