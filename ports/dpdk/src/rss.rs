//! Symmetric RSS: a device spreads frames over its receive queues so that both directions of a flow
//! map to the same one.
//!
//! Network cards use the Toeplitz hash: each one bit of the input adds the 32 bits of the key that
//! start at its position. With a key that repeats after 16 bits, swapping source and destination
//! does not change the hash, since IP addresses are multiples of 16 bits long (Woo and Park,
//! "Scalable TCP Session Monitoring with Symmetric Receive-side Scaling", 2012). UDP's ports are
//! excluded, because a RoCEv2 flow's source ports differ by direction.

use crate::config::{DpdkConfig, Spread};
use crate::error::DpdkError;
use crate::shim::Info;

/// The repeated part of the key: half of its bits are ones, and its rotations all differ, so that
/// all hash values occur.
const PATTERN: [u8; 2] = [0x6d, 0x5a];

/// Minimum key length for two IPv6 addresses, in bytes.
const KEY_BYTES_MIN: u8 = 2 * 16 + 4;

/// A symmetric key of this length.
pub(crate) fn symmetric_key(bytes: u8) -> Vec<u8> {
    PATTERN.into_iter().cycle().take(bytes.into()).collect()
}

/// The key for a device with `ports` ports; `None` if its default applies, or if it has a single
/// receive queue.
pub(crate) fn key_for(
    config: &DpdkConfig,
    ports: u16,
    info: &Info,
    driver: &str,
) -> Result<Option<Vec<u8>>, DpdkError> {
    let queues = ports * config.rx_queues;
    if queues == 1 || config.spread == Spread::ByDevice {
        return Ok(None);
    }
    let lacks = if info.hashes_addresses == 0 {
        "which its driver does not offer"
    } else if info.hash_key_bytes < KEY_BYTES_MIN {
        "the same for both directions: its key cannot be set"
    } else if info.spread_slots != 0 && info.spread_slots < queues {
        "over so many queues: its table is shorter"
    } else {
        return Ok(Some(symmetric_key(info.hash_key_bytes)));
    };
    Err(no_rss(config, driver, lacks))
}

pub(crate) fn no_rss(config: &DpdkConfig, driver: &str, lacks: &'static str) -> DpdkError {
    DpdkError::NoRss { device: config.device().to_owned(), driver: driver.to_owned(), lacks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The Toeplitz hash, bit by bit.
    fn hash(key: &[u8], input: &[u8]) -> u32 {
        let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1 == 1;
        (0..input.len() * 8).filter(|at| bit(input, *at)).fold(0, |sum, at| {
            sum ^ (at..at + 32).fold(0, |word, place| word << 1 | u32::from(bit(key, place)))
        })
    }

    #[test]
    fn the_reference_hashes_as_published() {
        // From Microsoft's "Verifying the RSS Hash Calculation": 66.9.149.187 to 161.142.100.80,
        // without ports.
        let key = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3,
            0x8f, 0xb0,
        ];
        assert_eq!(hash(&key, &[66, 9, 149, 187, 161, 142, 100, 80]), 0x323e_8fc2);
    }

    proptest! {
        #[test]
        fn both_directions_are_alike(
            one in any::<[u8; 16]>(),
            other in any::<[u8; 16]>(),
            bytes in KEY_BYTES_MIN..=255,
        ) {
            let key = symmetric_key(bytes);
            for len in [4, 16] {
                let [one, other] = [&one[..len], &other[..len]];
                prop_assert_eq!(
                    hash(&key, &[one, other].concat()),
                    hash(&key, &[other, one].concat())
                );
            }
        }
    }

    #[test]
    fn hosts_of_a_site_spread_over_all_queues() {
        let key = symmetric_key(40);
        let mut came = [0; 4];
        for host in 0..256 {
            came[hash(&key, &[10, 0, 0, 1, 10, 1, 0, host as u8]) as usize % 128 % 4] += 1;
        }
        assert!(came.iter().all(|frames| (32..=96).contains(frames)), "{came:?}");
    }

    #[test]
    fn what_a_device_lacks_is_said() {
        let able =
            Info { hashes_addresses: 1, hash_key_bytes: 40, spread_slots: 128, ..Info::default() };
        let asked = |info: Info, ports, spread| {
            let config = DpdkConfig { spread, ..DpdkConfig::new("net_x0,y=z") };
            key_for(&config, ports, &info, "net_x").map_err(|error| error.to_string())
        };
        assert_eq!(asked(able, 4, Spread::ByAddresses), Ok(Some(symmetric_key(40))));
        assert_eq!(
            asked(Info { spread_slots: 0, ..able }, 4, Spread::ByAddresses),
            Ok(Some(symmetric_key(40)))
        );
        assert_eq!(
            asked(Info::default(), 1, Spread::ByAddresses),
            Ok(None),
            "one queue needs nothing"
        );
        assert_eq!(asked(Info::default(), 4, Spread::ByDevice), Ok(None));
        for (info, words) in [
            (Info { hashes_addresses: 0, ..able }, "its driver does not offer"),
            (Info { hash_key_bytes: 16, ..able }, "its key cannot be set"),
            (Info { spread_slots: 2, ..able }, "its table is shorter"),
        ] {
            let error = asked(info, 4, Spread::ByAddresses).unwrap_err();
            assert!(error.starts_with("net_x0 (net_x) ") && error.contains(words), "{error}");
            assert!(error.contains("--dpdk-spread=device") && !error.contains('\n'), "{error}");
        }
    }
}
