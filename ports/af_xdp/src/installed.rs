//! What an interface has once, however many ports share its queues: the program, and settings of
//! its own.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use longhaul_netdev::interface;
use longhaul_netdev::offloads::{ReceiveOffloads, Unwanted};

use crate::bpf;
use crate::config::{Mode, XdpConfig};
use crate::error::XdpError;
use crate::memory::Buffers;
use crate::program::program;
use crate::socket::XdpSocket;

/// What the kernel keeps of each buffer that a frame is received in, in bytes.
const HEADROOM: usize = 256;
/// The longest frame in one buffer, in bytes.
pub(crate) const ONE_BUFFER: usize = Buffers::EACH - HEADROOM;
/// An Ethernet header and two VLAN tags, in bytes.
const AROUND_MTU: usize = 14 + 2 * 4;

/// A port's part of the queues of an interface.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    /// Which port it is, from 0 on.
    number: u16,
    /// How many there are.
    of: u16,
    /// What they share. Nothing of it is on the way of a frame.
    installed: Arc<Mutex<Weak<Installed>>>,
}

impl Share {
    /// Those of so many ports.
    pub(crate) fn of(ports: u16) -> impl Iterator<Item = Share> {
        let all = Share { of: ports, ..Share::whole() };
        (0..ports).map(move |number| Share { number, ..all.clone() })
    }

    /// That of an only port.
    pub(crate) fn whole() -> Share {
        Share { number: 0, of: 1, installed: Arc::default() }
    }

    /// The numbers of its queues, in turn with the others', and how many all have together.
    ///
    /// # Errors
    /// When one of the ports had none to receive or to send by.
    pub(crate) fn queues(&self, config: &XdpConfig) -> Result<(Vec<u16>, u16), XdpError> {
        let there = interface::queues(&config.interface)?;
        let most = u32::from(XdpConfig::QUEUES_MAX);
        let count = config.queues.unwrap_or_else(|| there.receive.clamp(1, most) as u16);
        let (queues, cores) = (there.send.min(there.receive).min(count.into()), self.of);
        if self.of > 1 && queues < u32::from(cores) {
            return Err(XdpError::QueuesForCores {
                interface: config.interface.clone(),
                queues,
                cores,
            });
        }
        Ok(((self.number..count).step_by(self.of.into()).collect(), count))
    }

    /// The program at the interface `index`, put there if no other port has done that.
    pub(crate) fn installed(
        &self,
        config: &XdpConfig,
        index: u32,
    ) -> Result<Arc<Installed>, XdpError> {
        let mut shared = self.installed.lock().unwrap_or_else(PoisonError::into_inner);
        // Another index is that of an interface which was made anew.
        if let Some(there) = shared.upgrade().filter(|there| there.index == index) {
            return Ok(there);
        }
        let installed = Arc::new(Installed::new(config, index)?);
        *shared = Arc::downgrade(&installed);
        Ok(installed)
    }
}

/// The program as it runs at an interface; gone with the last port that has it.
#[derive(Debug)]
pub(crate) struct Installed {
    attached: Attached,
    /// Of the interface.
    index: u32,
    /// Of the interface when the program came there, in bytes.
    pub(crate) mtu: u32,
    _promiscuous: Option<OwnedFd>,
    _offloads: [Option<ReceiveOffloads>; 2],
}

#[derive(Debug)]
struct Attached {
    _link: OwnedFd,
    map: OwnedFd,
    is_native: bool,
    takes_parts: bool,
    refusal: Option<String>,
}

impl Installed {
    fn new(config: &XdpConfig, index: u32) -> Result<Self, XdpError> {
        let name = &config.interface;
        let refused =
            |operation| move |source| XdpError::of(name, operation, "CAP_NET_RAW", source);
        // Before the program: drivers refuse it beside LRO.
        let unwanted = Unwanted { kernel_merging: false, device_merging: true, tags_off: true };
        let offloads =
            ReceiveOffloads::turn_off(name, index, unwanted).map_err(refused("making a socket"))?;
        let mtu = interface::mtu(name)?;
        let attached = attach(config, index, mtu)?;
        let unwanted = Unwanted { kernel_merging: true, device_merging: false, tags_off: false };
        let merging = (!attached.is_native)
            .then(|| ReceiveOffloads::turn_off(name, index, unwanted))
            .transpose()
            .map_err(refused("making a socket"))?;
        let promiscuous = config
            .promiscuous
            .then(|| crate::socket::promiscuous(index))
            .transpose()
            .map_err(refused("asking for frames to others"))?;
        let offloads = [Some(offloads), merging];
        Ok(Self { attached, index, mtu, _promiscuous: promiscuous, _offloads: offloads })
    }

    /// Has frames of the queue handed to the socket.
    pub(crate) fn hand_to(&self, queue: u16, socket: &XdpSocket) -> io::Result<()> {
        bpf::put_socket(self.attached.map.as_fd(), queue.into(), socket.as_fd())
    }

    /// The program runs in the driver.
    pub(crate) fn is_native(&self) -> bool {
        self.attached.is_native
    }

    /// Frames may lie in several buffers.
    pub(crate) fn takes_parts(&self) -> bool {
        self.attached.takes_parts
    }

    /// Why it is not native although that was first choice.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.attached.refusal.clone()
    }
}

/// Has the program run at the interface, in the best way that there is. It finds no sockets yet,
/// and leaves all to the kernel.
fn attach(config: &XdpConfig, index: u32, mtu: u32) -> Result<Attached, XdpError> {
    let name = &config.interface;
    let map = bpf::map_of_sockets(u32::from(XdpConfig::QUEUES_MAX)).map_err(|error| match error
        .raw_os_error()
    {
        Some(libc::EINVAL) => XdpError::too_old("make a map of sockets", error),
        _ => XdpError::of(name, "making a map of sockets", "CAP_BPF", error),
    })?;
    let code = program(config.wanted, map.as_fd().as_raw_fd());
    let load = |takes_parts| bpf::load(&code, takes_parts);
    let fits = mtu as usize + AROUND_MTU <= ONE_BUFFER;
    let whole = fits.then(|| load(false)).transpose().map_err(|error| {
        XdpError::of(name, "loading an XDP program", "CAP_BPF and CAP_NET_ADMIN", error)
    })?;
    let parts = load(true);
    let mut refusal = None;
    let ways: &[bool] = match config.mode {
        Mode::Auto => &[true, false],
        Mode::Native => &[true],
        Mode::Generic => &[false],
    };
    for &is_native in ways {
        // In the driver one buffer first: more have zero copy for it. Behind it long segments of
        // this machine's senders may come.
        let mut programs = [(whole.as_ref(), false), (parts.as_ref().ok(), true)];
        if !is_native {
            programs.reverse();
        }
        for (program, takes_parts) in programs {
            let Some(program) = program else { continue };
            match bpf::link(program.as_fd(), index, is_native) {
                Ok(link) => {
                    return Ok(Attached { _link: link, map, is_native, takes_parts, refusal });
                }
                Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => {
                    return Err(XdpError::ProgramThere { interface: name.clone() });
                }
                Err(error) if is_fatal(&error) => {
                    return Err(XdpError::of(
                        name,
                        "attaching an XDP program",
                        "CAP_NET_ADMIN",
                        error,
                    ));
                }
                Err(error) if is_native => refusal = Some(meaning(&error)),
                Err(error) => {
                    return Err(XdpError::too_old("attach an XDP program by a link", error));
                }
            }
        }
    }
    match (parts, refusal) {
        (Err(error), _) if !fits => Err(too_large(name, mtu, &error)),
        (_, reason) => {
            let reason = reason.unwrap_or_else(|| "it says nothing".to_owned());
            Err(XdpError::NoNative { interface: name.clone(), reason })
        }
    }
}

/// Whether another way of attaching would fare no better.
fn is_fatal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EACCES | libc::ENODEV | libc::ENXIO | libc::ENOMEM | libc::ENOSYS)
    )
}

/// What it mostly means that a driver refuses with this error.
fn meaning(error: &io::Error) -> String {
    let meaning = match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => "it has no XDP",
        Some(libc::ERANGE) => "the MTU is too large for it",
        Some(libc::ENOSPC) => {
            "it has too few receive queues, on veth fewer than its other end sends by"
        }
        _ => return error.to_string(),
    };
    meaning.to_owned()
}

pub(crate) fn too_large(interface: &str, mtu: u32, error: &io::Error) -> XdpError {
    let most = (ONE_BUFFER - AROUND_MTU) as u32;
    let reason =
        format!("without frames over several buffers, which Linux has from 6.6 on ({error}),");
    XdpError::MtuTooLarge { interface: interface.to_owned(), mtu, most, reason }
}
