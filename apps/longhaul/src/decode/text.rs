//! One line of text per frame, in common notation.

use super::model::{Acknowledge, Content, Icrc, Line, Meaning, RocePacket};
use longhaul_wire::{MacAddr, Opcode, PKEY_DEFAULT};
use std::fmt;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Writes `line`; times are counted from `epoch_ns`.
pub fn write_line(out: &mut impl Write, line: &Line, epoch_ns: u64) -> io::Result<()> {
    write!(out, "{:>6} ", line.frame)?;
    match line.time_unix_ns {
        Some(ns) => {
            let (sign, ns) = if ns < epoch_ns { ("-", epoch_ns - ns) } else { ("", ns - epoch_ns) };
            let seconds = format!("{sign}{}", ns / 1_000_000_000);
            write!(out, "{seconds:>3}.{:09}  ", ns % 1_000_000_000)?;
        }
        None => write!(out, "{:>13}  ", "-")?,
    }
    match &line.content {
        Content::Roce(packet) => writeln!(out, "{packet}"),
        Content::Other { what } => writeln!(out, "{what}, {} bytes", line.length),
        Content::Malformed { error } => writeln!(out, "MALFORMED: {error}, {} bytes", line.length),
        Content::Cut { error } => {
            writeln!(out, "{error}, {} of {} bytes", line.captured, line.length)
        }
    }
}

impl fmt::Display for RocePacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} → {}  {}", self.source, self.destination, self.name)?;
        write!(f, "  QP {:#08x} PSN {}", self.destination_qp, self.psn)?;
        self.flags(f)?;
        if let Some(r) = &self.reth {
            write!(f, "  VA {} rkey {} DMA {}", r.virtual_address, r.rkey, r.dma_bytes)?;
        }
        if let Some(aeth) = &self.aeth {
            write!(f, "  {aeth}")?;
        }
        if let Some(d) = &self.deth {
            write!(f, "  from QP {:#08x} QKey {}", d.source_qp, d.qkey)?;
        }
        if let Some(a) = &self.atomic {
            write!(f, "  VA {} rkey {}", a.virtual_address, a.rkey)?;
            match a.compare {
                Some(compare) => write!(f, " swap {} compare {compare}", a.swap_or_add)?,
                None => write!(f, " add {}", a.swap_or_add)?,
            }
        }
        if let Some(original) = self.atomic_original {
            write!(f, ", original {original}")?;
        }
        if let Some(immediate) = self.immediate {
            write!(f, "  imm {immediate}")?;
        }
        if let Some(rkey) = self.invalidate_rkey {
            write!(f, "  invalidate rkey {rkey}")?;
        }
        match &self.cm {
            Some(cm) => write!(f, "  {cm}")?,
            // Acknowledgements and READ requests have no payload.
            None if self.payload_bytes == 0 && (self.aeth.is_some() || self.asks_for_data()) => {}
            None => write!(f, "  {} B", self.payload_bytes)?,
        }
        match self.icrc {
            Icrc::Ok => f.write_str("  ICRC ok"),
            Icrc::Wrong { received, expected } => {
                write!(f, "  ICRC WRONG: {received}, not {expected}")
            }
            Icrc::Cut => f.write_str("  ICRC cut"),
        }
    }
}

impl RocePacket {
    fn asks_for_data(&self) -> bool {
        self.atomic.is_some() || Opcode(self.opcode) == Opcode::RC_READ_REQUEST
    }

    /// Set or unusual flags.
    fn flags(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Both ECN bits of the traffic class: a router met congestion.
        let ce = self.traffic_class & 3 == 3;
        for (set, name) in [
            (self.ack_request, "AckReq"),
            (self.solicited, "SE"),
            (self.fecn, "FECN"),
            (self.becn, "BECN"),
            (ce, "CE"),
        ] {
            if set {
                write!(f, " {name}")?;
            }
        }
        if let Some(vlan) = self.vlan {
            write!(f, " VLAN {vlan}")?;
        }
        if self.pkey != PKEY_DEFAULT {
            write!(f, " PKey {:#06x}", self.pkey)?;
        }
        if self.version != 0 {
            write!(f, " TVer {}", self.version)?;
        }
        Ok(())
    }
}

impl fmt::Display for Acknowledge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning {
            Meaning::Credits(Some(credits)) => write!(f, "ACK, credits {credits}")?,
            Meaning::Credits(None) => f.write_str("ACK, credits unlimited")?,
            Meaning::RnrWaitNs(ns) => write!(f, "RNR NAK, wait {} ms", ns as f64 / 1e6)?,
            Meaning::Nak(reason) => write!(f, "NAK {:#04x}, {reason}", self.syndrome)?,
            Meaning::Reserved(byte) => write!(f, "reserved syndrome {byte:#04x}")?,
        }
        write!(f, ", MSN {}", self.msn)
    }
}

/// Short description of a frame that is not RoCEv2.
pub fn other_frame(data: &[u8]) -> String {
    let Some((ethernet, rest)) = data.split_first_chunk::<14>() else {
        return "shorter than an Ethernet header".to_owned();
    };
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *ethernet;
    let between =
        || format!("{} → {}", MacAddr([s0, s1, s2, s3, s4, s5]), MacAddr([d0, d1, d2, d3, d4, d5]));
    match u16::from_be_bytes([t0, t1]) {
        0x0800 => match rest.first_chunk::<20>() {
            Some(ip) => {
                let [.., a, b, c, d, e, g, h, i] = *ip;
                let (from, to) = (Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, g, h, i));
                format!("{from} → {to}  {}", protocol(ip[9]))
            }
            None => format!("{}  IPv4", between()),
        },
        0x86dd => match (rest.get(6), rest.get(8..24), rest.get(24..40)) {
            (Some(&next), Some(from), Some(to)) => {
                let address = |b: &[u8]| <[u8; 16]>::try_from(b).map(Ipv6Addr::from);
                match (address(from), address(to)) {
                    (Ok(from), Ok(to)) => format!("{from} → {to}  {}", protocol(next)),
                    _ => format!("{}  IPv6", between()),
                }
            }
            _ => format!("{}  IPv6", between()),
        },
        0x0806 => format!("{}  ARP", between()),
        0x8100 | 0x88a8 => format!("{}  VLAN-tagged, not RoCEv2", between()),
        0x8915 => format!("{}  RoCEv1", between()),
        ethertype => format!("{}  EtherType {ethertype:#06x}", between()),
    }
}

fn protocol(number: u8) -> String {
    match number {
        1 => "ICMP".to_owned(),
        2 => "IGMP".to_owned(),
        6 => "TCP".to_owned(),
        17 => "UDP, not RoCEv2".to_owned(),
        58 => "ICMPv6".to_owned(),
        other => format!("IP protocol {other}"),
    }
}
