//! Why a port cannot be had. The cures that are options are those of `longhaul`.

use thiserror::Error;

/// An error of [`eal::start`](crate::eal::start) or [`DpdkPort::open`](crate::DpdkPort::open). Each
/// names its cure.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DpdkError {
    /// DPDK was to have huge pages, and the machine has none to give.
    #[error(
        "no huge pages are free: reserve some with 'dpdk-hugepages.py --setup 1G', or do without \
         and more slowly, by --dpdk-eal='--no-huge -m 1024'"
    )]
    NoHugePages,
    /// DPDK does not start.
    #[error("DPDK does not start with '{arguments}': {reason}")]
    Start {
        /// What it was started with.
        arguments: String,
        /// What it said.
        reason: String,
    },
    /// DPDK runs with other arguments; it starts once in a process.
    #[error("DPDK runs with '{running}', and starts once in a process")]
    StartedOtherwise {
        /// What it was started with.
        running: String,
    },
    /// [`eal::start`](crate::eal::start) was not called.
    #[error("DPDK is not started")]
    NotStarted,
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
    /// There is no such device on the PCI bus.
    #[error(
        "no PCI device has the address {device}: 'dpdk-devbind.py --status-dev net' lists those \
         that there are"
    )]
    NoPciDevice {
        /// Its address.
        device: String,
    },
    /// The kernel uses the device.
    #[error(
        "{device} belongs to the kernel's driver {driver}: give it to DPDK with 'dpdk-devbind.py \
         --bind=vfio-pci {device}'"
    )]
    KernelDriver {
        /// Its address.
        device: String,
        /// The driver.
        driver: String,
    },
    /// No driver of the kernel's gives the device to DPDK.
    #[error(
        "{device} has no driver: give it to DPDK with 'dpdk-devbind.py --bind=vfio-pci {device}'"
    )]
    NoKernelDriver {
        /// Its address.
        device: String,
    },
    /// DPDK has no driver for the device, or the driver refuses its arguments.
    #[error(
        "no driver of DPDK takes '{devargs}' ({reason}): 'apt-get install librte-meta-net' \
         installs all that Debian has"
    )]
    NoDriver {
        /// The device with its arguments.
        devargs: String,
        /// What DPDK said.
        reason: String,
    },
    /// Another port has this device.
    #[error("{device} is in use by another port of this process: give each port its own")]
    InUse {
        /// The device.
        device: String,
    },
    /// The device does not spread flows over queues as is asked for.
    #[error(
        "{device} ({driver}) does not spread frames by their two IP addresses, {lacks}: \
         --dpdk-queues=1 on one core, or --dpdk-spread=device"
    )]
    NoRss {
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
        /// What it lacks.
        lacks: &'static str,
    },
    /// The device has fewer queues than were asked for.
    #[error("{device} ({driver}) has {most} {kind} queues, and {wanted} are asked for: {cure}")]
    Queues {
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
        /// Which kind: receive or transmit.
        kind: &'static str,
        /// How many there are.
        most: u16,
        /// How many were asked for.
        wanted: usize,
        /// What gives it more, or asks for fewer.
        cure: &'static str,
    },
    /// The device takes no frames as long as the flows need.
    #[error(
        "{device} ({driver}) takes an MTU of {most} at most, and flows need {wanted}: \
         --dpdk-mtu={most}, and no more at the hosts"
    )]
    Mtu {
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
        /// The largest, in bytes.
        most: u32,
        /// What was asked for, in bytes.
        wanted: u16,
    },
    /// Not enough memory for the port's buffers.
    #[error(
        "no memory for {buffers} buffers of {bytes} bytes ({reason}): --dpdk-eal='-m {megabytes}' \
         or more, beside what it has"
    )]
    NoMemory {
        /// How many.
        buffers: u32,
        /// Bytes of each.
        bytes: usize,
        /// What DPDK said.
        reason: String,
        /// What would be enough for this port, in MiB.
        megabytes: usize,
    },
    /// The device refuses something else.
    #[error("{device}: {operation}: {reason}")]
    Device {
        /// The device.
        device: String,
        /// What was being done.
        operation: &'static str,
        /// What DPDK said.
        reason: String,
    },
}
