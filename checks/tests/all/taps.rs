//! The capture reader reads the recordings of a port's tap: the two are implemented separately,
//! because ports know no protocol.

use longhaul_checks::packets::every_kind;
use longhaul_port::tap::{TapConfig, TapPort};
use longhaul_port::{Port, loopback};
use longhaul_wire::pcap::{self, LinkType};

#[test]
fn a_recording_is_read_back_frame_by_frame() {
    let path = std::env::temp_dir().join(format!("longhaul-tap-{}.pcap", std::process::id()));
    let frames: Vec<_> = every_kind().iter().take(20).map(|fields| fields.build()).collect();
    let (near, _far) = loopback::pair("tap", 64, 2048).unwrap();
    let mut tap = TapPort::create(near, &path, TapConfig::default()).unwrap();
    for frame in &frames {
        assert!(tap.transmit(frame.len(), &mut |out| out.copy_from_slice(frame)).unwrap());
    }
    drop(tap);
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
