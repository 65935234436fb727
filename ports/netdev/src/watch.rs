//! Whether an interface is there, up and connected: for ports that live on one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use longhaul_port::LinkState;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::request;

/// How often a port that is kept awake asks whether something has changed. A sleeping one is woken.
const LOOK_AFTER: Duration = Duration::from_millis(1);
/// How often it looks without having been told, in case that it was not told.
const LOOK_ANYWAY_AFTER: Duration = Duration::from_secs(1);

/// How often an interface may be renamed while it is looked at.
const RENAMED_MAX: usize = 3;

/// How an interface is, as of the last look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// Neither the interface that the port is on nor one of its name is there.
    Absent,
    /// The former is, or else the latter, with this index.
    Present {
        /// Its index.
        index: u32,
        /// Somebody wants it to be up.
        is_up: bool,
        /// It has a carrier, and whatever else it takes.
        is_running: bool,
    },
}

impl Presence {
    /// The index of what is there.
    pub fn index(self) -> Option<u32> {
        match self {
            Presence::Present { index, .. } => Some(index),
            Presence::Absent => None,
        }
    }
}

/// Watches one interface. What the kernel tells is only taken as a reason to look: it may lose
/// messages.
pub struct Watch {
    events: OwnedFd,
    /// What to look for when there is none.
    interface: String,
    /// What the one that is there is called by now, if something else.
    renamed: Option<String>,
    must_look: bool,
    look_after: Instant,
    look_anyway_after: Instant,
}

impl Watch {
    /// Watches in the network namespace of the calling thread. The first look is due.
    ///
    /// # Errors
    /// When the process is out of descriptors.
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

    /// The interface's name, as of the last look.
    pub fn interface(&self) -> &str {
        self.renamed.as_deref().unwrap_or(&self.interface)
    }

    /// Has the next [`Watch::look`] look, whether something was told or not.
    pub fn suspect(&mut self) {
        self.must_look = true;
        self.look_after = Instant::now();
    }

    /// Has the next [`Watch::look`] ask whether something was told.
    pub fn wake(&mut self) {
        self.look_after = Instant::now();
    }

    /// How the interface is, if that may have changed; mostly nothing but a look at the clock.
    /// `index` is that of the interface that the port is on, if it is on one.
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
        // Again when it was renamed between the two questions.
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

    /// Takes all messages, and returns whether there were any.
    fn drain(&self) -> bool {
        let mut is_told = false;
        // The rest of a message that is longer is lost with it.
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

    /// Readable when something was told.
    pub fn descriptor(&self) -> libc::c_int {
        self.events.as_raw_fd()
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

/// A socket that is told of every change of every interface.
fn link_events() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
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

/// The state of a port's link, and why it is down.
#[derive(Debug)]
pub struct Link {
    /// As of the last look.
    pub state: LinkState,
    reason: Option<String>,
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// Down, for no reason yet.
    pub fn new() -> Self {
        Self { state: LinkState::Down, reason: None }
    }

    /// Why it is down.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Takes over how the interface is, and returns whether the link came up by that.
    pub fn follow(&mut self, interface: &str, presence: Presence) -> bool {
        let cause = match presence {
            Presence::Absent => format!("interface {interface} was deleted"),
            Presence::Present { is_up: false, .. } => {
                format!(
                    "interface {interface} is set down (`ip link set {interface} up` sets it up)"
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

    /// The link is down for a reason that the interface does not show.
    pub fn fail(&mut self, cause: String) {
        self.state = LinkState::Down;
        self.reason = Some(cause);
    }
}

/// Whether a call failed because the interface is down or gone, which the next look tells more of.
pub fn is_down(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV | libc::EIO | libc::EBADFD)
    )
}
