//! Watches whether an interface exists, is up and has a carrier.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use longhaul_port::LinkState;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::request;

/// Interval at which a port that never sleeps checks for messages. A sleeping one is woken.
const LOOK_AFTER: Duration = Duration::from_millis(1);
/// Interval at which it looks without a message, in case one was lost.
const LOOK_ANYWAY_AFTER: Duration = Duration::from_secs(1);

/// Maximum number of renames during one look.
const RENAMED_MAX: usize = 3;

/// State of an interface at the last look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// Neither the port's interface nor one of its name exists.
    Absent,
    /// The port's interface, or else the one of its name, exists.
    Present {
        /// Its index.
        index: u32,
        /// The interface is set up.
        is_up: bool,
        /// It has a carrier, and is operational.
        is_running: bool,
    },
}

impl Presence {
    /// Index of the interface, if present.
    pub fn index(self) -> Option<u32> {
        match self {
            Presence::Present { index, .. } => Some(index),
            Presence::Absent => None,
        }
    }
}

/// Watches one interface. Messages of the kernel only trigger a look, since it may lose some.
pub struct Watch {
    events: OwnedFd,
    /// Name to look for when the interface is gone.
    interface: String,
    /// Current name of the interface, if it differs.
    renamed: Option<String>,
    must_look: bool,
    look_after: Instant,
    look_anyway_after: Instant,
}

impl Watch {
    /// Watches in the network namespace of the calling thread. The first look is due at once.
    ///
    /// # Errors
    /// If the process is out of descriptors.
    pub fn new(interface: &str) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            events: link_events()?,
            interface: interface.to_owned(),
            renamed: None,
            must_look: true,
            look_after: now,
            look_anyway_after: now,
        })
    }

    /// Name of the interface at the last look.
    pub fn interface(&self) -> &str {
        self.renamed.as_deref().unwrap_or(&self.interface)
    }

    /// Makes the next [`Watch::look`] look, with or without a message.
    pub fn suspect(&mut self) {
        self.must_look = true;
        self.look_after = Instant::now();
    }

    /// Makes the next [`Watch::look`] check for messages.
    pub fn wake(&mut self) {
        self.look_after = Instant::now();
    }

    /// State of the interface, if it may have changed; usually this only reads the clock. `index`
    /// is the port's interface, if it has one.
    pub fn look(&mut self, index: Option<u32>) -> Option<Presence> {
        let now = Instant::now();
        if now < self.look_after {
            return None;
        }
        self.look_after = now + LOOK_AFTER;
        let is_told = self.drain();
        if !is_told && !self.must_look && now < self.look_anyway_after {
            return None;
        }
        self.must_look = false;
        self.look_anyway_after = now + LOOK_ANYWAY_AFTER;
        Some(self.presence(index))
    }

    fn presence(&mut self, index: Option<u32>) -> Presence {
        let events = &self.events;
        let look = |index| {
            let name = request::name(events, index)?;
            Ok((index, request::flags(events, &name)?, name))
        };
        // Repeated if the interface was renamed between the two requests.
        let here = index.and_then(|index| (0..RENAMED_MAX).find_map(|_| look(index).ok()));
        let answer =
            here.map_or_else(|| request::index(events, &self.interface).and_then(look), Ok);
        self.renamed = None;
        match answer {
            Ok((index, flags, name)) => {
                self.renamed = (name != self.interface).then_some(name);
                let is = |flag: libc::c_int| flags & flag as u16 != 0;
                Presence::Present {
                    index,
                    is_up: is(libc::IFF_UP),
                    is_running: is(libc::IFF_RUNNING),
                }
            }
            Err(_) => Presence::Absent,
        }
    }

    /// Reads all messages, and returns whether there were any.
    fn drain(&self) -> bool {
        let mut is_told = false;
        // The rest of a longer message is discarded with it.
        let mut message = [0; 64];
        loop {
            match recv(&self.events, &mut message[..], RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => return is_told,
                Ok(_) | Err(Errno::INTR) => is_told = true,
                // Messages were lost.
                Err(Errno::NOBUFS) => is_told = true,
                Err(_) => return true,
            }
        }
    }

    /// Readable when a message waits.
    pub fn descriptor(&self) -> libc::c_int {
        self.events.as_raw_fd()
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

/// A socket that receives a message about every change of every interface.
fn link_events() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: integers, all of which may be zero.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_groups = libc::RTMGRP_LINK as u32;
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the descriptor is open, and the address is live and of the given length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

/// State of a port's link, and the reason why it is down.
#[derive(Debug)]
pub struct Link {
    /// State at the last look.
    pub state: LinkState,
    reason: Option<String>,
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// Down, without a reason.
    pub fn new() -> Self {
        Self { state: LinkState::Down, reason: None }
    }

    /// Up.
    pub fn up() -> Self {
        Self { state: LinkState::Up, reason: None }
    }

    /// Down, for this reason.
    pub fn down(reason: String) -> Self {
        Self { state: LinkState::Down, reason: Some(reason) }
    }

    /// Why the link is down.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Adopts the interface's state, and returns whether the link came up.
    pub fn follow(&mut self, interface: &str, presence: Presence) -> bool {
        let cause = match presence {
            Presence::Absent => format!("interface {interface} was deleted"),
            Presence::Present { is_up: false, .. } => {
                format!(
                    "interface {interface} is set down ('ip link set {interface} up' sets it up)"
                )
            }
            Presence::Present { is_running: false, .. } => {
                format!("interface {interface} has no carrier: is the other end connected and up?")
            }
            Presence::Present { .. } => {
                self.reason = None;
                return std::mem::replace(&mut self.state, LinkState::Up) == LinkState::Down;
            }
        };
        self.fail(cause);
        false
    }

    /// Sets the link down for a reason that the interface does not show.
    pub fn fail(&mut self, cause: String) {
        self.state = LinkState::Down;
        self.reason = Some(cause);
    }
}

/// True if a call failed because the interface is down or gone; the next look shows which.
pub fn is_down(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV | libc::EIO | libc::EBADFD)
    )
}
