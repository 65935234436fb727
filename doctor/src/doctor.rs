//! The doctor: takes packets one by one and produces a report.

use crate::connections::Connections;
use crate::flows::Flows;
use crate::frame::{Frame, Icrc};
use crate::link::link_type_name;
use crate::others::Others;
use crate::report::{Capture, IcrcCounts, Link, Report};
use crate::summary;
use crate::trace::Trace;
use longhaul_units::{BitRate, Qpn};
use longhaul_wire::pcap::{LinkType, Record};
use longhaul_wire::{ICRC_LEN, Opcode};
use serde::Serialize;

/// Maximum link types counted separately.
const LINK_TYPES_MAX: usize = 16;
/// Kinds of other traffic in a report.
const OTHERS_LISTED: usize = 12;

/// Options of a doctor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Maximum halves of connections to follow: about 4 KiB of memory each, 30 KiB with varying
    /// round trips. A connection has two.
    pub halves_max: usize,
    /// Maximum outstanding packets of all flows together: 64 bytes of memory each.
    pub packets_max: usize,
    /// The path's rate, for advice about windows. Default: derived from the highest rate seen.
    pub rate: Option<BitRate>,
    /// Seed of the flow table's hash, so that a crafted capture cannot make it slow.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { halves_max: 16_384, packets_max: 1 << 21, rate: None, seed: 0 }
    }
}

/// Where reading ended.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum End {
    /// At the end of the capture.
    #[default]
    Complete,
    /// The file ends inside a record.
    Truncated {
        /// Offset of that record in bytes.
        at_byte: u64,
        /// Minimum number of missing bytes.
        missing_bytes: u64,
    },
    /// The file has an invalid record.
    Damaged {
        /// Its offset in bytes.
        at_byte: u64,
        /// The error.
        why: String,
    },
}

/// Analyses the packets of a capture.
#[derive(Debug)]
pub struct Doctor {
    options: Options,
    frames: u64,
    frame_bytes: u64,
    first_ns: Option<u64>,
    last_ns: u64,
    untimed: u64,
    backward: u64,
    cut: u64,
    links: Vec<(LinkType, u64)>,
    roce: u64,
    malformed: u64,
    first_malformed: Option<u64>,
    cut_in_headers: u64,
    unknown_link: u64,
    icrc: IcrcTally,
    end: End,
    others: Others,
    connections: Connections,
    flows: Flows,
}

#[derive(Debug, Default)]
struct IcrcTally {
    right: u64,
    wrong: u64,
    not_checked: u64,
    first_wrong: Option<(u64, [u8; ICRC_LEN])>,
    differs: bool,
}

impl IcrcTally {
    fn add(&mut self, icrc: Icrc, frame: u64) {
        match icrc {
            Icrc::Right => self.right += 1,
            Icrc::NotChecked => self.not_checked += 1,
            Icrc::Wrong(received) => {
                self.wrong += 1;
                let (_, first) = *self.first_wrong.get_or_insert((frame, received));
                self.differs |= first != received;
            }
        }
    }

    fn report(&self) -> IcrcCounts {
        let constant = self.first_wrong.filter(|_| self.wrong > 1 && !self.differs);
        IcrcCounts {
            right: self.right,
            wrong: self.wrong,
            not_checked: self.not_checked,
            first_wrong_frame: self.first_wrong.map(|(frame, _)| frame),
            constant: constant.map(|(_, [a, b, c, d])| format!("{a:02x}{b:02x}{c:02x}{d:02x}")),
        }
    }
}

impl Doctor {
    /// Creates a doctor.
    pub fn new(options: Options) -> Self {
        Doctor {
            options,
            frames: 0,
            frame_bytes: 0,
            first_ns: None,
            last_ns: 0,
            untimed: 0,
            backward: 0,
            cut: 0,
            links: Vec::new(),
            roce: 0,
            malformed: 0,
            first_malformed: None,
            cut_in_headers: 0,
            unknown_link: 0,
            icrc: IcrcTally::default(),
            end: End::Complete,
            others: Others::default(),
            connections: Connections::default(),
            flows: Flows::new(options.halves_max, options.packets_max, options.seed),
        }
    }

    /// Creates a doctor for a second pass over the same capture, which collects the points of
    /// `trace`.
    pub fn tracing(options: Options, trace: Trace) -> Self {
        let mut doctor = Doctor::new(options);
        doctor.flows.traced = Some((trace.flow_id(), Box::new(trace)));
        doctor
    }

    /// Processes the next packet of the capture.
    pub fn feed(&mut self, record: &Record<'_>) {
        self.frames += 1;
        self.frame_bytes += record.original_len as u64;
        self.cut += u64::from(record.data.len() < record.original_len);
        self.count_link(record.link_type);
        let now_ns = self.time(record.timestamp_ns);
        let frame = self.frames;
        match Frame::read(record) {
            Frame::Roce(packet) => {
                self.roce += 1;
                self.icrc.add(packet.icrc, frame);
                if packet.bth.dest_qp == Qpn::GSI && packet.bth.opcode != Opcode::CNP {
                    let (source, destination) = (packet.source, packet.destination);
                    let connected = packet
                        .mad
                        .and_then(|mad| self.connections.message(source, destination, frame, mad));
                    if let Some(connected) = connected {
                        self.flows.connected(&connected);
                    }
                    return;
                }
                self.flows.packet(&packet, now_ns, frame, record.original_len as u32);
            }
            Frame::Other(kind) => self.others.add(kind),
            Frame::Malformed => {
                self.malformed += 1;
                self.first_malformed.get_or_insert(frame);
            }
            Frame::Cut => self.cut_in_headers += 1,
            Frame::UnknownLink => self.unknown_link += 1,
        }
    }

    /// Returns the time since the first packet in ns; a packet without a timestamp has that of its
    /// predecessor.
    fn time(&mut self, timestamp_ns: Option<u64>) -> u64 {
        let Some(now) = timestamp_ns else {
            self.untimed += 1;
            return self.last_ns.saturating_sub(self.first_ns.unwrap_or(0));
        };
        let first = *self.first_ns.get_or_insert(now);
        self.backward += u64::from(now < self.last_ns);
        self.last_ns = self.last_ns.max(now);
        now.saturating_sub(first)
    }

    fn count_link(&mut self, link_type: LinkType) {
        match self.links.iter().position(|(known, _)| *known == link_type) {
            Some(at) => self.links[at].1 += 1,
            None if self.links.len() < LINK_TYPES_MAX => self.links.push((link_type, 1)),
            None => {}
        }
    }

    /// Records where reading ended.
    pub fn ended(&mut self, end: End) {
        self.end = end;
    }

    /// Returns the report, after the last packet.
    pub fn finish(mut self) -> Report {
        for half in &mut self.flows.halves {
            half.requests.finish();
        }
        let capture = self.capture();
        let others = self.others.listed(OTHERS_LISTED);
        let encapsulated = self.others.has(crate::frame::NonRoceKind::Udp(4789))
            || self.others.has(crate::frame::NonRoceKind::IpProtocol(47));
        summary::report(
            capture,
            self.flows,
            self.connections.seen,
            others,
            encapsulated,
            self.options,
        )
    }

    /// Returns the collected trace, after a second pass.
    pub fn finish_trace(mut self) -> Option<Trace> {
        let traced = self.flows.halves.iter_mut().find_map(|half| half.requests.trace.take());
        traced.map(|trace| *trace)
    }

    fn capture(&self) -> Capture {
        let link = |&(LinkType(number), frames): &(LinkType, u64)| Link {
            number,
            name: link_type_name(LinkType(number)),
            frames,
        };
        Capture {
            frames: self.frames,
            frame_bytes: self.frame_bytes,
            first_unix_ns: self.first_ns,
            duration_ns: self.last_ns.saturating_sub(self.first_ns.unwrap_or(self.last_ns)),
            untimed_frames: self.untimed,
            cut_frames: self.cut,
            backward_frames: self.backward,
            link_types: self.links.iter().map(link).collect(),
            roce_packets: self.roce,
            other_frames: self.others.frames + self.unknown_link,
            malformed_packets: self.malformed,
            first_malformed_frame: self.first_malformed,
            cut_in_headers: self.cut_in_headers,
            icrc: self.icrc.report(),
            answers_without_requests: self.flows.halves.iter().map(|half| half.unmatched).sum(),
            end: self.end.clone(),
        }
    }
}
