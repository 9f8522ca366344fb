import time
def test_b(kernel):
    for what in ("%reset -f", "1", "%load_ext perfkit", "%%gpu_time\n1", "import gc; gc.collect()", "get_ipython().displayhook.flush()", "%%gpu_time -r 3 -w 0\n__import__('time').sleep(0.001)\n"):
        t=time.time()
        for _ in range(10): kernel.run(what)
        print(what, (time.time()-t)/10)
    t=time.time()
    for _ in range(10): kernel.value("1")
    print("value", (time.time()-t)/10)
