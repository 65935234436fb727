use longhaul_port::loopback::{self, LoopbackPort};
use longhaul_port::{
    Descriptors, Lease, LinkState, Port, PortCapabilities, PortCounters, PortError, Received,
};
use std::io;

/// One end of an in-process ring between two stages.
pub struct RingEnd {
    port: LoopbackPort,
    copies: bool,
}

impl RingEnd {
    /// Both ends. Frames pass by reference, or with `copies` are copied into the ring and out of it, as by ports that lend none.
    /// The rest as [`loopback::pair`].
    ///
    /// # Errors
    /// As [`loopback::pair`].
    pub fn pair(name: &str, slots: usize, frame_bytes_max: usize, copies: bool) -> io::Result<(Self, Self)> {
        let (a, b) = loopback::pair(name, slots, frame_bytes_max)?;
        Ok((RingEnd { port: a, copies }, RingEnd { port: b, copies }))
    }
}

impl Port for RingEnd {
    fn receive(&mut self, max: usize, each: &mut dyn FnMut(&[u8])) -> Result<usize, PortError> {
        self.port.receive(max, each)
    }

    fn receive_lent(&mut self, max: usize, each: &mut dyn FnMut(Received<'_>)) -> Result<usize, PortError> {
        if self.copies {
            return self.port.receive(max, &mut |bytes| each(Received::Passing(bytes)));
        }
        self.port.receive_lent(max, each)
    }

    fn transmit_room(&mut self) -> usize {
        self.port.transmit_room()
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, PortError> {
        self.port.transmit(len, fill)
    }

    fn transmit_lent(&mut self, lease: &Lease) -> Result<bool, PortError> {
        if self.copies {
            let bytes = lease.bytes();
            return self.port.transmit(bytes.len(), &mut |out| out.copy_from_slice(bytes));
        }
        self.port.transmit_lent(lease)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.port.flush()
    }

    fn arm(&mut self) -> Result<bool, PortError> {
        self.port.arm()
    }

    fn disarm(&mut self) {
        self.port.disarm();
    }

    fn descriptors(&self) -> Descriptors {
        self.port.descriptors()
    }

    fn service(&mut self) -> Result<LinkState, PortError> {
        self.port.service()
    }

    fn link_state(&self) -> LinkState {
        self.port.link_state()
    }

    fn capabilities(&self) -> PortCapabilities {
        self.port.capabilities()
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}
