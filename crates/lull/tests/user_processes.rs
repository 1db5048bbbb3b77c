//! Programs of several processes on lull's user plane, and what becomes of their queues, connections and descriptors when one
//! of them forks, reloads, executes another program, is stopped or dies.

mod user;

const NGINX: &str = "command -v nginx && command -v curl && command -v ab && command -v ip";

#[test]
fn two_nginx_workers_have_a_queue_each_and_one_that_is_killed_is_replaced() {
    for mode in ["base", "suspend20"] {
        user::run("workers", NGINX, mode, "");
    }
}
