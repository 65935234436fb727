//! Why a port cannot be had, and what to do about it. The options that cures name are those of
//! `longhaul`'s `xdp:` ports.

use std::io;

use longhaul_netdev::NetdevError;
use thiserror::Error;

/// An error of [`crate::XdpPort::open`]. Each names its cure where there is one.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum XdpError {
    /// A field of the configuration is out of range.
    #[error("{field} is {value}, and has to be {range}")]
    Config {
        /// Name of the field.
        field: &'static str,
        /// What it is.
        value: String,
        /// What it has to be.
        range: &'static str,
    },
    /// The interface is not there or no Ethernet interface, or the operating system refused what no
    /// other variant names.
    #[error(transparent)]
    Interface(#[from] NetdevError),
    /// The process lacks a privilege.
    #[error(
        "{interface}: not permitted: {operation} needs {capability}: run as root, or give the \
         program the rights with `setcap cap_net_raw,cap_net_admin,cap_bpf=ep PROGRAM`; in a \
         container the host has to grant them"
    )]
    NotPermitted {
        /// The interface.
        interface: String,
        /// What was being done.
        operation: &'static str,
        /// The capability that it takes.
        capability: &'static str,
    },
    /// The interface runs another XDP program.
    #[error(
        "{interface} has an XDP program already: end what loaded it, or take it off with `ip link \
         set dev {interface} xdp off` (`xdpgeneric off` for one in generic mode)"
    )]
    ProgramThere {
        /// The interface.
        interface: String,
    },
    /// Another socket has the queue.
    #[error(
        "queue {queue} of {interface} is in use by another AF_XDP socket: end that process, or \
         leave the queue out by queues="
    )]
    QueueInUse {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u16,
    },
    /// The interface has fewer queues than were asked for.
    #[error(
        "{interface} has {most} queues: queues={most}, or set more with `ethtool -L {interface} \
         combined {wanted}`"
    )]
    Queues {
        /// The interface.
        interface: String,
        /// How many there are.
        most: u16,
        /// How many were asked for.
        wanted: u16,
    },
    /// The interface has too few queues for the cores that are to share it.
    #[error(
        "{interface} has {queues} {} for {cores} cores, each of which takes one of its own to \
         receive and to send by: `ethtool -L {interface} combined {cores}` (`rx {cores} tx \
         {cores}` where `ethtool -l` counts them apart), or fewer --cores",
        if *queues == 1 { "queue" } else { "queues" }
    )]
    QueuesForCores {
        /// The interface.
        interface: String,
        /// How many it both receives and sends by, of those that were asked for.
        queues: u32,
        /// How many ports are to share it.
        cores: u16,
    },
    /// The driver does not run the program.
    #[error(
        "the driver of {interface} refuses native mode ({reason}): leave `native` out, or write \
         `generic`"
    )]
    NoNative {
        /// The interface.
        interface: String,
        /// What it said, and what that mostly means.
        reason: String,
    },
    /// The driver does not share buffers.
    #[error("the driver of {interface} has no zero copy: leave `zerocopy` out")]
    NoZeroCopy {
        /// The interface.
        interface: String,
    },
    /// Frames as long as the interface's take several buffers, and this kernel or driver knows none
    /// such.
    #[error(
        "{interface} has an MTU of {mtu} bytes, and {reason} an AF_XDP port carries {most} at \
         most: lower it here and at the hosts with `ip link set dev {interface} mtu {most}`, or \
         use the interface without `xdp:`"
    )]
    MtuTooLarge {
        /// The interface.
        interface: String,
        /// Its MTU in bytes.
        mtu: u32,
        /// What can be carried.
        most: u32,
        /// Why no more.
        reason: String,
    },
    /// The process may not keep so much memory from being swapped.
    #[error(
        "{interface}: {bytes} bytes of memory are to be kept from being swapped, more than the \
         limit (RLIMIT_MEMLOCK): raise it with `ulimit -l unlimited` or systemd's \
         `LimitMEMLOCK=infinity`, or take fewer queues by queues="
    )]
    LockedMemory {
        /// The interface.
        interface: String,
        /// How much.
        bytes: usize,
    },
    /// The interface is down, and the driver gives sockets no queues until it is up.
    #[error(
        "{interface} is down, and its driver opens its queues only while it is up: `ip link set \
         {interface} up`"
    )]
    Down {
        /// The interface.
        interface: String,
    },
    /// The kernel lacks what a port needs.
    #[error(
        "Linux {release} cannot {operation} ({source}): AF_XDP ports need 5.11 or later with \
         CONFIG_XDP_SOCKETS; use the interface without `xdp:`"
    )]
    KernelTooOld {
        /// Version of the kernel.
        release: String,
        /// What it does not know.
        operation: &'static str,
        /// Its answer.
        source: io::Error,
    },
}

impl XdpError {
    /// Names what `source` means for `interface` where it is the usual cause; `capability` is what
    /// `operation` takes.
    pub(crate) fn of(
        interface: &str,
        operation: &'static str,
        capability: &'static str,
        source: io::Error,
    ) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                XdpError::NotPermitted { interface: interface.to_owned(), operation, capability }
            }
            Some(libc::EAFNOSUPPORT | libc::ENOSYS | libc::ENOPROTOOPT) => {
                Self::too_old(operation, source)
            }
            Some(libc::ENETDOWN) => XdpError::Down { interface: interface.to_owned() },
            _ => NetdevError::of(interface, operation, capability, source).into(),
        }
    }

    pub(crate) fn too_old(operation: &'static str, source: io::Error) -> Self {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        XdpError::KernelTooOld { release: release.trim().to_owned(), operation, source }
    }
}
