//! Tests of libibverbs' extended interfaces from C: completion queues with an iterator and
//! timestamps, and the work request builder.

use crate::extended_pair;

fn run(scenario: &str, kinds: &[&str]) {
    for kind in kinds {
        extended_pair::run(scenario, kind);
    }
}

mod builder {
    use super::run;

    #[test]
    fn writes_from_segments_and_inline() {
        run("writes", &["rc", "uc"]);
    }

    #[test]
    fn sends_over_every_transport() {
        run("sends", &["rc", "uc", "ud"]);
    }

    #[test]
    fn invalidates_a_key_of_the_peer() {
        run("invalidates", &["rc"]);
    }

    #[test]
    fn reads_and_does_atomics() {
        run("reads_and_atomics", &["rc"]);
    }

    #[test]
    fn posts_lists_as_long_as_the_queue() {
        run("lists", &["rc"]);
    }

    #[test]
    fn forgets_what_is_aborted() {
        run("aborts", &["rc"]);
    }

    #[test]
    fn posts_nothing_of_a_list_with_a_mistake() {
        run("mistakes", &["rc"]);
    }

    #[test]
    fn posts_nothing_of_a_list_that_does_not_fit() {
        run("full_queue", &["rc"]);
    }

    #[test]
    fn keeps_the_lists_of_threads_apart() {
        run("posting_threads", &["rc"]);
    }
}

mod creation {
    use super::run;

    #[test]
    fn refuses_what_the_device_does_not_have() {
        run("creation", &["rc", "uc", "ud"]);
    }
}

mod iterator {
    use super::run;

    #[test]
    fn goes_together_with_plain_polling() {
        run("iteration", &["rc"]);
    }

    #[test]
    fn tells_when_the_device_was_done() {
        run("timestamps", &["rc"]);
    }

    #[test]
    fn goes_together_with_events() {
        run("events", &["rc"]);
    }

    #[test]
    fn gives_each_completion_to_one_of_several_threads() {
        run("polling_threads", &["rc"]);
    }
}
