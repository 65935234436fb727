//! The capture reader reads the recordings of a capturing port: the two are implemented separately,
//! because ports know no protocol.

use longhaul_checks::packets::every_kind;
use longhaul_port::capture::{CaptureConfig, CapturingPort};
use longhaul_port::{Port, loopback};
use longhaul_wire::pcap::{self, LinkType};

#[test]
fn a_recording_is_read_back_frame_by_frame() {
    let path = std::env::temp_dir().join(format!("longhaul-recording-{}.pcap", std::process::id()));
    let frames: Vec<_> = every_kind().iter().take(20).map(|fields| fields.build()).collect();
    let (near, _far) = loopback::pair("recorded", 64, 2048).unwrap();
    let mut port = CapturingPort::create(near, &path, CaptureConfig::default()).unwrap();
    for frame in &frames {
        assert!(port.transmit(frame.len(), &mut |out| out.copy_from_slice(frame)).unwrap());
    }
    drop(port);
    let file = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let records: Vec<_> = pcap::records(&file).collect::<Result<_, _>>().unwrap();
    assert_eq!(records.len(), frames.len());
    for (record, frame) in records.iter().zip(&frames) {
        assert_eq!((record.data, record.original_len), (&frame[..], frame.len()));
        assert_eq!(record.link_type, LinkType::ETHERNET);
        // Nanoseconds, not microseconds: between 2023 and 2106.
        assert!(record.timestamp_ns.is_some_and(|ns| {
            (1_700_000_000_000_000_000..4_294_967_296_000_000_000).contains(&ns)
        }));
    }
}
