//! RTT samples that READs give.

use crate::script::run;
use longhaul_units::Duration;

fn read(psn: u32, after_ms: u64) -> String {
    format!(
        "lan: read {psn} dma=1024
         > wan read {psn} dma=1024
         after {after_ms}ms
         wan: read_only {psn} len=1024
         > lan read_only {psn} len=1024 msn=0\n"
    )
}

#[test]
fn a_responder_that_was_slow_once_is_measured_again() {
    let mut script = run(&format!("connect psn=100\n {}", read(100, 80)));
    assert_eq!(script.status().rtt, Some(Duration::from_ms(80)));
    for psn in 101..140 {
        script.go_on(&read(psn, 10));
    }
    let rtt = script.status().rtt.expect("samples");
    assert!(rtt < Duration::from_ms(11), "{rtt}");
    assert_eq!(script.status().rtt_min, Some(Duration::from_ms(10)));
}

#[test]
fn only_the_first_response_is_a_sample() {
    let script = run("connect psn=100
         lan: read 100 A dma=2048
         > wan read 100 A dma=2048
         after 10ms
         wan: read_first 100 msn=1
         > lan read_first 100 msn=1
         after 20ms
         wan: read_first 100 msn=1    # the path duplicated it
         > lan read_first 100 msn=1
         wan: read_last 101 msn=1
         > lan read_last 101 msn=1");
    assert_eq!(script.status().rtt, Some(Duration::from_ms(10)));
}

/// Karn's rule.
#[test]
fn a_repeated_read_is_no_sample() {
    let script = run(&format!(
        "connect psn=100
         {}
         lan: read 101 dma=1024
         > wan read 101 dma=1024
         after 25ms
         lan: read 101 dma=1024
         > wan read 101 dma=1024
         > wan read 101 A dma=1024
         after 1ms
         wan: read_only 101 len=1024
         > lan read_only 101 len=1024 msn=0",
        read(100, 10)
    ));
    assert_eq!(script.status().rtt, Some(Duration::from_ms(10)));
}
