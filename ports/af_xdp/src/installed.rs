//! State that the ports of one interface share: the program, and settings of the interface.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use longhaul_netdev::interface;
use longhaul_netdev::offloads::{ReceiveOffloads, Unwanted};
use longhaul_port::Handover;

use crate::bpf;
use crate::config::{Mode, XdpConfig};
use crate::error::XdpError;
use crate::memory::Buffers;
use crate::program::program;
use crate::socket::XdpSocket;

/// Bytes of each receive buffer that the kernel reserves.
const HEADROOM: usize = 256;
/// Maximum length of a frame in one buffer, in bytes.
pub(crate) const ONE_BUFFER: usize = Buffers::EACH - HEADROOM;
/// Bytes of an Ethernet header and two VLAN tags.
const AROUND_MTU: usize = 14 + 2 * 4;

/// Changes of offloads by a port: those before the program, and those for generic mode.
const OFFLOADS_MAX: usize = 2;

/// A port's share of the queues of an interface.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    /// Number of the port, from 0.
    number: u16,
    /// Number of ports.
    of: u16,
    /// Shared by the ports. Moving a frame does not touch it.
    installed: Arc<Mutex<Weak<Installed>>>,
}

impl Share {
    /// Shares of `ports` ports.
    pub(crate) fn of(ports: u16) -> impl Iterator<Item = Share> {
        let all = Share { of: ports, ..Share::whole() };
        (0..ports).map(move |number| Share { number, ..all.clone() })
    }

    /// The share of a single port.
    pub(crate) fn whole() -> Share {
        Share { number: 0, of: 1, installed: Arc::default() }
    }

    /// Numbers of this port's queues, assigned round-robin, and the number of all ports' queues.
    ///
    /// # Errors
    /// If a port would have no queue to receive or to send by.
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

    /// The program that another process handed over, which the first port takes for all.
    pub(crate) fn taken_over(&self, handover: Handover) -> Option<Arc<Installed>> {
        let mut shared = self.installed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(there) = shared.upgrade() {
            return Some(there);
        }
        let installed = Arc::new(Installed::take_over(handover)?);
        *shared = Arc::downgrade(&installed);
        Some(installed)
    }

    /// The program at the interface `index`; installs it unless another port has done so.
    pub(crate) fn installed(
        &self,
        config: &XdpConfig,
        index: u32,
    ) -> Result<Arc<Installed>, XdpError> {
        let mut shared = self.installed.lock().unwrap_or_else(PoisonError::into_inner);
        // A recreated interface has another index.
        if let Some(there) = shared.upgrade().filter(|there| there.index == index) {
            return Ok(there);
        }
        let installed = Arc::new(Installed::new(config, index)?);
        *shared = Arc::downgrade(&installed);
        Ok(installed)
    }
}

/// A program at an interface. Dropping the last reference detaches it.
#[derive(Debug)]
pub(crate) struct Installed {
    attached: Attached,
    /// Index of the interface.
    index: u32,
    /// MTU of the interface when the program was attached, in bytes.
    pub(crate) mtu: u32,
    promiscuous: Option<OwnedFd>,
    /// Restored at the end, unless another process has the interface then.
    offloads: Mutex<Vec<ReceiveOffloads>>,
}

#[derive(Debug)]
struct Attached {
    link: OwnedFd,
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
        // Before the program, because drivers refuse it while LRO is on.
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
        let offloads = Mutex::new(std::iter::once(offloads).chain(merging).collect());
        Ok(Self { attached, index, mtu, promiscuous, offloads })
    }

    /// The interface's index.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// What another process needs to [continue](Self::take_over).
    pub(crate) fn hand_over(&self) -> io::Result<Handover> {
        let Attached { link, map, is_native, takes_parts, .. } = &self.attached;
        let fds = [link, map].into_iter().chain(&self.promiscuous);
        let descriptors = fds.map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let mut numbers =
            vec![self.index.into(), self.mtu.into(), (*is_native).into(), (*takes_parts).into()];
        let offloads = self.offloads.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.extend(offloads.iter().flat_map(ReceiveOffloads::numbers));
        Ok(Handover { descriptors, numbers })
    }

    /// Continues a program of another process. `None`: it handed over none.
    pub(crate) fn take_over(handover: Handover) -> Option<Self> {
        let [index, mtu, is_native, takes_parts, offloads @ ..] = &handover.numbers[..] else {
            return None;
        };
        let index = u32::try_from(*index).ok()?;
        let mut descriptors = handover.descriptors.into_iter();
        let attached = Attached {
            link: descriptors.next()?,
            map: descriptors.next()?,
            is_native: *is_native != 0,
            takes_parts: *takes_parts != 0,
            refusal: None,
        };
        let offloads = offloads.as_chunks::<2>().0.iter().take(OFFLOADS_MAX);
        let offloads = offloads.map(|numbers| ReceiveOffloads::adopt(index, *numbers));
        Some(Self {
            attached,
            index,
            mtu: u32::try_from(*mtu).ok()?,
            promiscuous: descriptors.next(),
            offloads: Mutex::new(offloads.collect::<io::Result<_>>().ok()?),
        })
    }

    /// Leaves the interface's offloads as they are.
    pub(crate) fn give_away(&self) {
        let mut offloads = self.offloads.lock().unwrap_or_else(PoisonError::into_inner);
        offloads.drain(..).for_each(ReceiveOffloads::leave);
    }

    /// Restores the interface's offloads at the end.
    pub(crate) fn take_charge(&self) {
        let mut offloads = self.offloads.lock().unwrap_or_else(PoisonError::into_inner);
        offloads.iter_mut().for_each(ReceiveOffloads::take_charge);
    }

    /// Redirects frames of the queue to the socket.
    pub(crate) fn hand_to(&self, queue: u16, socket: &XdpSocket) -> io::Result<()> {
        bpf::put_socket(self.attached.map.as_fd(), queue.into(), socket.as_fd())
    }

    /// The program runs in the driver.
    pub(crate) fn is_native(&self) -> bool {
        self.attached.is_native
    }

    /// A frame may span several buffers.
    pub(crate) fn takes_parts(&self) -> bool {
        self.attached.takes_parts
    }

    /// Why it is not native although that was tried first.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.attached.refusal.clone()
    }
}

/// Attaches the program in the best way that works. Its map is still empty, so the kernel receives
/// all frames.
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
        // In the driver, single buffers come first, because more drivers support zero copy for
        // them. Behind the driver, long segments of this machine's senders may arrive.
        let mut programs = [(whole.as_ref(), false), (parts.as_ref().ok(), true)];
        if !is_native {
            programs.reverse();
        }
        for (program, takes_parts) in programs {
            let Some(program) = program else { continue };
            match bpf::link(program.as_fd(), index, is_native) {
                Ok(link) => {
                    return Ok(Attached { link, map, is_native, takes_parts, refusal });
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

/// True if other ways of attaching would fail too.
fn is_fatal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EACCES | libc::ENODEV | libc::ENXIO | libc::ENOMEM | libc::ENOSYS)
    )
}

/// The usual reason why a driver refuses with this error.
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
