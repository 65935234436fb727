//! Errors of opening a port, with their cures. Cures name options of `longhaul`'s `xdp:` ports.

use std::io;

use longhaul_netdev::NetdevError;
use thiserror::Error;

/// An error of [`crate::XdpPort::open`]. Each names its cure if there is one.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum XdpError {
    /// A field of the configuration is out of range.
    #[error("{field} is {value}, and has to be {range}")]
    Config {
        /// Name of the field.
        field: &'static str,
        /// The value.
        value: String,
        /// The valid range.
        range: &'static str,
    },
    /// The interface does not exist or is not an Ethernet interface; or any other error of the
    /// operating system.
    #[error(transparent)]
    Interface(#[from] NetdevError),
    /// The process lacks a privilege.
    #[error(
        "{operation} needs {capability}: run this as root, or give the program the rights with \
         'setcap cap_net_raw,cap_net_admin,cap_bpf=ep PROGRAM'; in a container the host has to \
         grant them"
    )]
    NotPermitted {
        /// The interface.
        interface: String,
        /// The failed operation.
        operation: &'static str,
        /// The capability that it needs.
        capability: &'static str,
    },
    /// Another XDP program runs at the interface.
    #[error(
        "{interface} has an XDP program already: end what loaded it, or take it off with 'ip link \
         set dev {interface} xdp off' ('xdpgeneric off' for one in generic mode)"
    )]
    ProgramThere {
        /// The interface.
        interface: String,
    },
    /// Another socket uses the queue.
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
    /// The interface has fewer queues than requested.
    #[error(
        "{interface} has {most} {}: queues={most}, or set more with 'ethtool -L {interface} \
         combined {wanted}'",
        if *most == 1 { "queue" } else { "queues" }
    )]
    Queues {
        /// The interface.
        interface: String,
        /// Number of its queues.
        most: u16,
        /// Requested number.
        wanted: u16,
    },
    /// The interface has too few queues for the cores that share it.
    #[error(
        "{interface} has {queues} {} for {cores} cores, each of which takes one of its own to \
         receive and to send by: 'ethtool -L {interface} combined {cores}' ('rx {cores} tx \
         {cores}' where 'ethtool -l' counts them apart), or fewer --cores",
        if *queues == 1 { "queue" } else { "queues" }
    )]
    QueuesForCores {
        /// The interface.
        interface: String,
        /// Number of queues, among the requested ones, that both receive and send.
        queues: u32,
        /// Number of ports that share it.
        cores: u16,
    },
    /// The driver refuses the program.
    #[error(
        "the driver of {interface} refuses native mode ({reason}): leave 'native' out, or write \
         'generic'"
    )]
    NoNative {
        /// The interface.
        interface: String,
        /// Its error, and the usual cause.
        reason: String,
    },
    /// The driver does not share buffers.
    #[error("the driver of {interface} has no zero copy: leave 'zerocopy' out")]
    NoZeroCopy {
        /// The interface.
        interface: String,
    },
    /// Frames of the interface's MTU span several buffers, which this kernel or driver does not
    /// support.
    #[error(
        "{interface} has an MTU of {mtu} bytes, and {reason} an AF_XDP port carries {most} at \
         most: lower it here and at the hosts with 'ip link set dev {interface} mtu {most}', or \
         use the interface without 'xdp:'"
    )]
    MtuTooLarge {
        /// The interface.
        interface: String,
        /// Its MTU in bytes.
        mtu: u32,
        /// Maximum MTU.
        most: u32,
        /// The reason.
        reason: String,
    },
    /// The process may not lock enough memory.
    #[error(
        "{interface}: {bytes} bytes of memory are to be kept from being swapped, more than the \
         limit (RLIMIT_MEMLOCK): raise it with 'ulimit -l unlimited' or systemd's \
         'LimitMEMLOCK=infinity', or take fewer queues by queues="
    )]
    LockedMemory {
        /// The interface.
        interface: String,
        /// Number of bytes.
        bytes: usize,
    },
    /// The interface is down, and its driver gives sockets no queues until it is up.
    #[error(
        "{interface} is down, and its driver opens its queues only while it is up: 'ip link set \
         {interface} up'"
    )]
    Down {
        /// The interface.
        interface: String,
    },
    /// Another process handed over what is not this port.
    #[error("{interface}: the running process handed over {what}")]
    NotThisPort {
        /// The interface.
        interface: String,
        /// What it handed over instead.
        what: String,
    },
    /// The kernel lacks a feature that a port needs.
    #[error(
        "Linux {release} cannot {operation} ({source}): AF_XDP ports need 5.11 or later with \
         CONFIG_XDP_SOCKETS; use the interface without 'xdp:'"
    )]
    KernelTooOld {
        /// Version of the kernel.
        release: String,
        /// The failed operation.
        operation: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl XdpError {
    /// Classifies `source` for `interface` by its usual cause; `capability` is the one that
    /// `operation` needs.
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
