//! Payloads of a capture's UDP packets, as messages to send.

use crate::problem::Problem;
use longhaul_ingest::sender::Recording;
use longhaul_wire::Udp;
use longhaul_wire::pcap::{self, LinkType};
use std::path::Path;
use std::time::Duration;

/// The recorded messages of `path`, with their length: the payloads of the UDP packets to `port`,
/// or to any.
pub fn read(path: &Path, port: Option<u16>) -> Result<(Recording, u32), Problem> {
    let bytes = std::fs::read(path).map_err(|error| Problem::io("read", path, &error))?;
    let name = path.display();
    let (recording, len, skipped) = recorded(&bytes, port).map_err(|why| {
        Problem::new(format!("{name}: {why}"), "'longhaul decode' shows what a capture holds")
    })?;
    if skipped > 0 {
        eprintln!(
            "longhaul: {name}: {skipped} packets are left out: their payload was cut, or does not \
             have {len} bytes as the first one has"
        );
    }
    Ok((recording, len))
}

fn recorded(capture: &[u8], port: Option<u16>) -> Result<(Recording, u32, u64), String> {
    let mut recording = Recording::default();
    let mut first: Option<(u64, usize)> = None;
    let (mut skipped, mut others) = (0, 0);
    for record in pcap::records(capture) {
        let record = record.map_err(|error| error.to_string())?;
        let found = (record.link_type == LinkType::ETHERNET).then(|| Udp::find(record.data));
        let is_wanted =
            |udp: &Udp| port.is_none_or(|port| udp.destination_port(record.data) == port);
        let Some(udp) = found.flatten().filter(is_wanted) else {
            others += 1;
            continue;
        };
        let time = record.timestamp_ns.ok_or("its packets have no times")?;
        let begin = udp.payload();
        let payload = udp.payload_len(record.data).and_then(|len| {
            record.data.get(begin..begin.checked_add(len)?).filter(|payload| !payload.is_empty())
        });
        let Some(payload) = payload else {
            skipped += 1;
            continue;
        };
        let (begun, len) = *first.get_or_insert((time, payload.len()));
        if payload.len() != len {
            skipped += 1;
            continue;
        }
        recording.bytes.extend_from_slice(payload);
        recording.times.push(Duration::from_nanos(time.saturating_sub(begun)));
    }
    let Some((_, len)) = first else {
        let to = port.map_or_else(String::new, |port| format!(" to port {port}"));
        return Err(format!("no whole UDP packet{to} with a payload; {others} other packets"));
    };
    Ok((recording, len as u32, skipped))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A capture of IPv4 packets: time, destination port, payload.
    fn capture(packets: &[(u64, u16, &[u8])]) -> Vec<u8> {
        let mut file = pcap::file_header(LinkType::ETHERNET, 65_535).to_vec();
        for (time, port, payload) in packets {
            let udp_len = (8 + payload.len()) as u16;
            let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
            frame.extend((20 + udp_len).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 9]);
            frame.extend(port.to_be_bytes());
            frame.extend(udp_len.to_be_bytes());
            frame.extend([0, 0]);
            frame.extend(*payload);
            let len = frame.len() as u32;
            let header =
                pcap::RecordHeader { timestamp_ns: *time, captured_len: len, original_len: len };
            file.extend(header.write());
            file.extend(frame);
        }
        file
    }

    #[test]
    fn payloads_of_the_port_have_their_times() {
        let file = capture(&[
            (1_000, 7148, &[1; 100]),
            (2_000, 53, &[9; 100]),
            (3_500, 7148, &[2; 100]),
            (4_000, 7148, &[3; 99]),
            (5_000, 7148, &[]),
        ]);
        let (recording, len, skipped) = recorded(&file, Some(7148)).unwrap();
        assert_eq!((len, skipped), (100, 2));
        assert_eq!(recording.bytes, [[1; 100], [2; 100]].concat());
        assert_eq!(recording.times, [Duration::ZERO, Duration::from_nanos(2_500)]);
        assert_eq!(recorded(&file, None).unwrap().0.times.len(), 3);
    }

    #[test]
    fn what_is_no_recording_is_refused() {
        let file = capture(&[(1_000, 53, &[1; 100])]);
        let said = recorded(&file, Some(7148)).unwrap_err();
        assert!(said.contains("no whole UDP packet to port 7148") && said.contains("1 other"));
        assert!(recorded(&file[..file.len() - 1], None).unwrap_err().contains("ends inside"));
        assert!(recorded(b"GIF89a", None).unwrap_err().contains("neither pcap nor pcapng"));
    }
}
