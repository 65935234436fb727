//! A receiver of telescope data allocates for windows, not for messages. The counts are those of
//! the whole process, which is this test's own.

use longhaul_checks::RuntimeDir;
use longhaul_checks::counting::Counting;
use longhaul_checks::two_processes::device;
use longhaul_ingest::device::software::Software;
use longhaul_ingest::receiver::Receiver;
use longhaul_ingest::sender::{Sender, Station};
use longhaul_ingest::settings::Settings;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

const LIMIT: Duration = Duration::from_secs(240);
/// Messages of a window.
const SLOTS: u32 = 4096;
/// Allocations of both ends for a window: chunk, fates, announcements and their JSON.
const PER_WINDOW: u64 = 128;

#[test]
fn a_message_costs_no_allocation() {
    let (warm, counted) = (20, 40);
    let dir = RuntimeDir::new();
    let socket = dir.path().join("memif").display().to_string();
    let receiving = Software::new(device(&socket, "master", "10.77.0.2")).unwrap();
    let sending = Software::new(device(&socket, "slave", "10.77.0.1")).unwrap();
    let settings = Settings {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        slots: SLOTS,
        message_bytes: 512,
        // More than are sent: however late the chunks are taken, none is overwritten.
        regions: 64,
        // Longer than a busy machine stops the sender.
        idle_ms: 60_000,
        ..Settings::default()
    };
    let receiver = Receiver::start(receiving, settings).unwrap();
    let station = Station {
        subbands: 16,
        blocks: SLOTS / 16,
        message_bytes: 512,
        windows: Some(warm + counted),
        rate: Some(4e8),
        ..Station::default()
    };
    let address = receiver.address().to_string();
    let allocated = std::thread::scope(|scope| {
        scope.spawn(|| {
            let sender = Sender::connect(&sending, &address, station).unwrap();
            sender.run(&AtomicBool::new(false), |_| {}).unwrap();
        });
        let take = |count| {
            for _ in 0..count {
                let chunk = receiver.next(LIMIT).expect("a chunk");
                assert_eq!(chunk.present(), SLOTS as usize);
                chunk.release();
            }
        };
        take(warm);
        let before = ALLOCATOR.calls();
        take(counted);
        ALLOCATOR.calls() - before
    });
    let messages = counted * u64::from(SLOTS);
    println!("{allocated} allocations for {messages} messages in {counted} windows");
    assert!(allocated <= counted * PER_WINDOW, "{allocated} allocations for {messages} messages");
}
