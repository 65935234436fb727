//! Errors of opening a port. Cures name options of `longhaul`.

use thiserror::Error;

/// An error of [`eal::start`](crate::eal::start) or [`DpdkPort::open`](crate::DpdkPort::open). Each
/// names its cure.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DpdkError {
    /// DPDK should use huge pages, but none are free.
    #[error(
        "no huge pages are free: reserve some with 'dpdk-hugepages.py --setup 1G', or do without \
         and more slowly, by --dpdk-eal='--no-huge -m 1024'"
    )]
    NoHugePages,
    /// DPDK did not start.
    #[error("DPDK does not start with '{arguments}': {reason}")]
    Start {
        /// Its arguments.
        arguments: String,
        /// Its error.
        reason: String,
    },
    /// DPDK runs with other arguments, but starts only once per process.
    #[error("DPDK runs with '{running}', and starts once in a process")]
    StartedOtherwise {
        /// Its arguments.
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
        /// The value.
        value: String,
        /// The valid range.
        range: &'static str,
    },
    /// The PCI bus has no such device.
    #[error(
        "no PCI device has the address {device}: 'dpdk-devbind.py --status-dev net' lists those \
         that there are"
    )]
    NoPciDevice {
        /// Its address.
        device: String,
    },
    /// A driver of the kernel uses the device.
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
    /// The device is bound to no driver that gives it to DPDK.
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
        /// DPDK's error.
        reason: String,
    },
    /// Another port has this device.
    #[error("{device} is in use by another port of this process: give each port its own")]
    InUse {
        /// The device.
        device: String,
    },
    /// The device does not spread flows as requested.
    #[error(
        "{device} ({driver}) does not spread frames by their two IP addresses, {lacks}: \
         --dpdk-queues=1 on one core, or --dpdk-spread=device"
    )]
    NoRss {
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
        /// The missing feature.
        lacks: &'static str,
    },
    /// The device has fewer queues than requested.
    #[error(
        "{device} ({driver}) has {most} {kind} {}, and {wanted} are asked for: {cure}",
        if *most == 1 { "queue" } else { "queues" }
    )]
    Queues {
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
        /// Which kind: receive or transmit.
        kind: &'static str,
        /// Number of its queues.
        most: u16,
        /// Requested number.
        wanted: usize,
        /// The cure: more queues, or a smaller request.
        cure: &'static str,
    },
    /// The device does not support frames as long as the flows need.
    #[error(
        "{device} ({driver}) takes an MTU of {most} at most, and flows need {wanted}: \
         --dpdk-mtu={most}, and no more at the hosts"
    )]
    Mtu {
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
        /// Its maximum MTU, in bytes.
        most: u32,
        /// Requested MTU, in bytes.
        wanted: u16,
    },
    /// Not enough memory for the port's buffers.
    #[error(
        "no memory for {buffers} buffers of {bytes} bytes ({reason}): --dpdk-eal='-m {megabytes}' \
         or more, beside what it has"
    )]
    NoMemory {
        /// Number of buffers.
        buffers: u32,
        /// Bytes of each.
        bytes: usize,
        /// DPDK's error.
        reason: String,
        /// Memory that would suffice for this port, in MiB.
        megabytes: usize,
    },
    /// Any other error of the device.
    #[error("{device}: {operation}: {reason}")]
    Device {
        /// The device.
        device: String,
        /// The failed operation.
        operation: &'static str,
        /// DPDK's error.
        reason: String,
    },
}
