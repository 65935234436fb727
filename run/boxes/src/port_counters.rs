//! Counters that only one kind of port has, under their names in statuses and metrics.

use crate::state::Named;
use crate::status::PortStatus;

/// Name in the port's declaration, and in a status.
type Renamed = (&'static str, &'static str);

/// The counters of one kind of port that a status has.
pub struct PortKind {
    rx_drops: &'static [Renamed],
    tx_drops: &'static [Renamed],
    /// Others, under their declared names unless they are renamed.
    other: &'static [Renamed],
}

const fn same(name: &'static str) -> Renamed {
    (name, name)
}

pub const NETDEV: PortKind = PortKind {
    rx_drops: &[("rx_buffer_full", "buffer_full"), ("rx_not_splittable", "not_splittable")],
    tx_drops: &[("tx_refused", "refused"), ("tx_queue_full", "queue_full")],
    other: &[
        ("rx_buffer_full_preferred", "rx_buffer_full_known"),
        same("rx_checksums_filled"),
        same("rx_split"),
        same("rx_tags_restored"),
        same("tx_blocked"),
        same("detached"),
        same("reattached"),
    ],
};

pub const XDP: PortKind = PortKind {
    rx_drops: &[
        ("rx_ring_full", "ring_full"),
        ("rx_dropped", "kernel"),
        ("rx_not_splittable", "not_splittable"),
    ],
    tx_drops: &[("tx_queue_full", "queue_full"), ("tx_refused", "refused")],
    other: &[
        same("rx_no_buffer"),
        same("rx_gathered"),
        same("rx_checksums_filled"),
        same("rx_split"),
        same("tx_blocked"),
        same("tx_stalls"),
        same("detached"),
        same("reattached"),
    ],
};

#[cfg(feature = "dpdk")]
pub const DPDK: PortKind = PortKind {
    rx_drops: &[
        ("rx_missed", "device_full"),
        ("rx_errors", "device_error"),
        ("rx_no_buffer", "no_buffer"),
    ],
    tx_drops: &[("tx_errors", "device_error")],
    other: &[
        same("rx_bad_checksum"),
        same("rx_gathered"),
        same("rx_not_lent"),
        same("tx_no_buffer"),
        same("tx_by_reference"),
        same("tx_stalls"),
        same("restarts"),
    ],
};

impl PortKind {
    /// Adds a port's counters, by their declared names, to its status.
    pub fn add(&self, status: &mut PortStatus, values: impl Iterator<Item = (&'static str, u64)>) {
        let values: Vec<_> = values.collect();
        let add = |to: &mut Named, names: &[Renamed]| {
            for (declared, name) in names {
                let value = values.iter().find(|(of, _)| of == declared);
                to.insert((*name).to_string(), value.map_or(0, |(_, value)| *value));
            }
        };
        add(&mut status.rx_drops, self.rx_drops);
        add(&mut status.tx_drops, self.tx_drops);
        add(&mut status.other, self.other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and descriptions of a declaration.
    type Names = [(&'static str, &'static str)];

    /// The table of a page: each counter with its description in the code.
    fn table(kind: &PortKind, names: &Names) -> String {
        let parts = [("drops in ", kind.rx_drops), ("drops out ", kind.tx_drops), ("", kind.other)];
        let rows =
            parts.iter().flat_map(|(part, names)| names.iter().map(move |name| (part, name)));
        let rows = rows.map(|(part, (declared, name))| {
            let meaning = names.iter().find(|(of, _)| of == declared);
            let (_, meaning) = meaning.unwrap_or_else(|| panic!("{declared} is not declared"));
            format!("| {part}`{name}` | {} |\n", meaning.trim_end_matches('.'))
        });
        rows.collect()
    }

    #[track_caller]
    fn page_has(page: &str, table: &str) {
        let path = format!("{}/../../docs/{page}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        let (_, after) = text.split_once("| counter | meaning |\n|---|---|\n").expect("a table");
        let (found, _) = after.split_once("\n\n").unwrap();
        assert!(format!("{found}\n") == table, "docs/{page} must have:\n{table}");
    }

    #[test]
    fn pages_describe_counters_as_they_are_declared() {
        page_has("af-xdp.md", &table(&XDP, longhaul_af_xdp::XdpCounters::NAMES));
        #[cfg(feature = "dpdk")]
        page_has("dpdk.md", &table(&DPDK, longhaul_dpdk::DpdkCounters::NAMES));
    }

    #[test]
    fn every_counter_of_an_interface_is_declared() {
        assert_eq!(table(&NETDEV, longhaul_netdev::NetdevCounters::NAMES).lines().count(), 11);
    }
}
