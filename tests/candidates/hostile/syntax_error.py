# expect: invalid static syntax-error 5
import cuda.tile as ct

def launch(stream, x, y):
    ct.launch(stream, (1,),, (x, y))
