//! A UDP socket as a [`Port`].

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use longhaul_port::{
    Descriptors, LinkState, Port, PortCapabilities, PortCounters, PortError, check_length,
    forward_port,
};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::config::{UdpConfig, UdpError};
use crate::counters::UdpCounters;
use crate::receiver::Receiver;
use crate::sender::{BACK_OFF, Sender};
use crate::socket::Socket;

/// Event that a sleeping port waits for before it sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Awaited {
    #[default]
    Nothing,
    /// Space in the send buffer.
    Writable,
    /// Time to retry after the kernel had no memory; the socket stays writable meanwhile.
    Later,
}

/// The descriptor to poll, and the timer registered in it.
fn wait_on_sending() -> Result<(OwnedFd, OwnedFd), Errno> {
    let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let later =
        timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    epoll::add(&ready, &later, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
    Ok((ready, later))
}

/// Makes `timer` expire once, `after` from now; 0 stops it, and clears an expiry.
fn set_timer(timer: &OwnedFd, after: Duration) -> Result<(), Errno> {
    let span = |span: Duration| Timespec {
        tv_sec: span.as_secs() as i64,
        tv_nsec: span.subsec_nanos().into(),
    };
    let value = Itimerspec { it_interval: span(Duration::ZERO), it_value: span(after) };
    timerfd_settime(timer, TimerfdTimerFlags::empty(), &value).map(drop)
}

/// RoCEv2 frames over one UDP socket. See the [crate's documentation](crate).
pub struct UdpPort {
    name: Arc<str>,
    frame_bytes_max: usize,
    transmit_slots: usize,
    socket: Socket,
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    ports: PortCounters,
    counters: UdpCounters,
    /// Readable when it is time to send again: it contains either the socket, when that is
    /// writable, or `later`, when that has expired.
    ready: OwnedFd,
    later: OwnedFd,
    awaits: Awaited,
}

impl UdpPort {
    /// Opens the port, which is up at once.
    ///
    /// # Errors
    /// [`UdpError`], which names the cure.
    pub fn bind(config: &UdpConfig) -> Result<Self, UdpError> {
        config.validate()?;
        let socket = Socket::bind(config)?;
        let (ready, later) = wait_on_sending().map_err(|error| UdpError::Io {
            bind: socket.bind,
            operation: "making a descriptor to wait on",
            source: error.into(),
        })?;
        Ok(Self {
            name: config.name.as_str().into(),
            frame_bytes_max: config.frame_bytes_max,
            transmit_slots: config.transmit_slots,
            sender: Sender::new(config, &socket),
            receiver: Receiver::new(config, &socket),
            socket,
            ports: PortCounters { link_ups: 1, ..PortCounters::default() },
            counters: UdpCounters::default(),
            ready,
            later,
            awaits: Awaited::Nothing,
        })
    }

    /// The bound address and port.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.socket.bind
    }

    /// The counters that other kinds of port do not have.
    #[must_use]
    pub fn udp_counters(&self) -> UdpCounters {
        self.counters
    }

    /// Sizes of the send and the receive buffer that the system granted, in the kernel's bytes:
    /// twice the requested size, about half of which is overhead.
    ///
    /// # Errors
    /// If the system does not report them.
    pub fn socket_buffers(&self) -> Result<(usize, usize), PortError> {
        self.socket
            .buffers()
            .map_err(|error| PortError::io("reading the socket's buffer sizes", error))
    }

    /// True if runs of packets are passed to the kernel as one.
    #[must_use]
    pub fn sends_runs(&self) -> bool {
        self.sender.sends_runs()
    }

    fn receive_each<F: FnMut(&[u8]) + ?Sized>(
        &mut self,
        max: usize,
        each: &mut F,
    ) -> Result<usize, PortError> {
        self.receiver
            .receive(&self.socket, max, each, &mut self.ports, &mut self.counters)
            .map_err(|error| PortError::io("receiving datagrams", error))
    }

    fn send(&mut self) {
        self.sender.send(&self.socket, &mut self.ports, &mut self.counters);
    }
}

impl Port for UdpPort {
    forward_port!(|self| self => receive_each);

    fn transmit_room(&mut self) -> usize {
        if self.sender.room() == 0 {
            self.send();
        }
        self.sender.room()
    }

    fn transmit(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<bool, PortError> {
        check_length(len, self.frame_bytes_max)?;
        if self.transmit_room() == 0 {
            self.ports.tx_full = self.ports.tx_full.wrapping_add(1);
            return Ok(false);
        }
        self.sender.build(len, fill, &mut self.ports, &mut self.counters);
        if self.sender.is_worth_sending() {
            self.send();
        }
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), PortError> {
        self.send();
        self.sender.report()
    }

    fn arm(&mut self) -> Result<bool, PortError> {
        // The socket stays readable while a datagram waits in it, so only packets that were read
        // count here.
        if self.receiver.holds_packets() {
            return Ok(true);
        }
        if self.sender.waiting() > 0 {
            self.send();
        }
        if self.sender.waiting() > 0 && self.awaits == Awaited::Nothing {
            let failed = |error| PortError::io("waiting for room in the send buffer", error);
            if self.sender.is_backing_off() {
                set_timer(&self.later, BACK_OFF).map_err(failed)?;
                self.awaits = Awaited::Later;
            } else {
                let data = epoll::EventData::new_u64(0);
                epoll::add(&self.ready, &self.socket.socket, data, epoll::EventFlags::OUT)
                    .map_err(failed)?;
                self.awaits = Awaited::Writable;
            }
        }
        Ok(false)
    }

    fn disarm(&mut self) {
        // Neither can fail: the removed descriptor was registered, and every descriptor is open.
        match std::mem::take(&mut self.awaits) {
            Awaited::Nothing => {}
            Awaited::Writable => _ = epoll::delete(&self.ready, &self.socket.socket),
            Awaited::Later => _ = set_timer(&self.later, Duration::ZERO),
        }
    }

    fn descriptors(&self) -> Descriptors {
        [self.socket.socket.as_raw_fd(), self.ready.as_raw_fd()].into_iter().collect()
    }

    fn service(&mut self) -> Result<LinkState, PortError> {
        if self.sender.is_blocked() {
            self.send();
        }
        self.sender.report().map(|()| LinkState::Up)
    }

    fn link_state(&self) -> LinkState {
        LinkState::Up
    }

    fn capabilities(&self) -> PortCapabilities {
        PortCapabilities {
            kind: "udp",
            name: Arc::clone(&self.name),
            frame_bytes_max: self.frame_bytes_max,
            transmit_slots: self.transmit_slots,
            interrupts: true,
        }
    }

    fn counters(&self) -> PortCounters {
        self.ports
    }
}
