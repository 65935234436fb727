//! Checks whether DPDK can use a PCI device, since DPDK itself only reports that it found none.

use crate::error::DpdkError;
use std::path::Path;

/// Drivers that hand a device over to user space.
const HAND_OVER: [&str; 4] = ["vfio-pci", "igb_uio", "uio_pci_generic", "nicvf"];
/// Drivers that share a device with DPDK, so that it need not be bound to another.
const SHARE: [&str; 3] = ["mlx4_core", "mlx5_core", "mana"];

/// The full address, as in `0000:3b:00.0`, if `device` is one.
pub(crate) fn address(device: &str) -> Option<String> {
    let device = device.strip_prefix("pci:").unwrap_or(device);
    let is_hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|digit| digit.is_ascii_hexdigit())
    };
    let (place, function) = device.rsplit_once('.')?;
    let parts: Vec<&str> = place.split(':').collect();
    let (domain, bus, slot) = match parts[..] {
        [bus, slot] => ("0000", bus, slot),
        [domain, bus, slot] => (domain, bus, slot),
        _ => return None,
    };
    let is_address = is_hex(domain, 4) && is_hex(bus, 2) && is_hex(slot, 2) && is_hex(function, 1);
    is_address.then(|| format!("{domain}:{bus}:{slot}.{function}").to_lowercase())
}

/// Refuses a device that does not exist or that the kernel uses. `devices` is
/// `/sys/bus/pci/devices`.
pub(crate) fn check(device: &str, devices: &Path) -> Result<(), DpdkError> {
    let Some(address) = address(device) else { return Ok(()) };
    let place = devices.join(&address);
    if !place.exists() {
        return Err(DpdkError::NoPciDevice { device: address });
    }
    let driver = place.join("driver").read_link().ok();
    let driver = driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    match driver {
        None => Err(DpdkError::NoKernelDriver { device: address }),
        Some(driver) if HAND_OVER.contains(&&*driver) || SHARE.contains(&&*driver) => Ok(()),
        Some(driver) => Err(DpdkError::KernelDriver { device: address, driver }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::create_dir_all;
    use std::os::unix::fs::symlink;

    #[test]
    fn addresses_are_told_from_names_of_virtual_devices() {
        assert_eq!(address("0000:3b:00.0").as_deref(), Some("0000:3b:00.0"));
        assert_eq!(address("3B:00.1").as_deref(), Some("0000:3b:00.1"));
        assert_eq!(address("pci:0001:3b:1f.7").as_deref(), Some("0001:3b:1f.7"));
        for name in ["net_memif0", "eth0.5", "3b:00", "0:3b:00.0", "zz:00.0", ""] {
            assert_eq!(address(name), None, "{name}");
        }
    }

    #[test]
    fn a_device_of_the_kernels_is_refused_with_the_command_that_hands_it_over() {
        let root = std::env::temp_dir().join(format!("longhaul-pci-{}", std::process::id()));
        let devices = root.join("devices");
        for (number, driver) in
            [(0, Some("ixgbe")), (1, Some("vfio-pci")), (2, Some("mlx5_core")), (3, None)]
        {
            let place = devices.join(format!("0000:3b:00.{number}"));
            create_dir_all(&place).unwrap();
            if let Some(driver) = driver {
                symlink(root.join("drivers").join(driver), place.join("driver")).unwrap();
            }
        }
        let checked = |device: &str| check(device, &devices).map_err(|error| error.to_string());
        let outcome =
            ["3b:00.0", "3b:00.1", "3b:00.2", "3b:00.3", "3b:00.4", "net_null0"].map(checked);
        std::fs::remove_dir_all(&root).unwrap();
        let [kernels, vfio, shared, none, absent, virtual_one] = outcome;
        let kernels = kernels.unwrap_err();
        assert!(
            kernels.contains("ixgbe") && kernels.contains("--bind=vfio-pci 0000:3b:00.0"),
            "{kernels}"
        );
        assert_eq!((vfio, shared, virtual_one), (Ok(()), Ok(()), Ok(())));
        assert!(none.unwrap_err().contains("--bind=vfio-pci 0000:3b:00.3"));
        assert!(absent.unwrap_err().contains("0000:3b:00.4"));
    }
}
